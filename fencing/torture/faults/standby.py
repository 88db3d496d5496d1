"""The primary is lost, and an asynchronous standby that lags takes its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.embedded.places import free_port
from fencing.torture.faults.beside import beside

if TYPE_CHECKING:
    from random import Random

    from fencing.embedded import PostgresProcess
    from fencing.embedded.standby import PostgresStandby
    from fencing.torture.faults.kinds import Steps
    from fencing.torture.stage import Stage

__all__ = ["promote"]


def promote(stage: Stage, chance: Random) -> Steps:
    """Promote a standby that has not heard of what was committed last; nobody can mend that.

    It serves at the old primary's address. That one comes back as well, where no worker looks for
    it: with two that are written to there are two histories, and no promise.
    """
    primary = stage.postgres
    standby = primary.standby(in_memory=True)
    stage.keep(standby)
    yield from beside(standby.start)
    yield from beside(standby.await_in_step)
    yield from beside(standby.cut_off)
    yield stage.settings.ttl * chance.uniform(0.5, 3.0)
    yield from beside(lambda: _take_over(stage, primary, standby))


def _take_over(stage: Stage, primary: PostgresProcess, standby: PostgresStandby) -> None:
    primary.crash()
    standby.promote()
    standby.stop()
    standby.port, primary.port = primary.port, free_port()
    standby.start()
    stage.postgres = standby
    primary.start()

"""Processes that stop and end wherever they happen to be."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.exc import OperationalError

if TYPE_CHECKING:
    from collections.abc import Generator
    from random import Random

    from fencing.torture.stage import Stage

__all__ = ["kill_a_backend", "kill_a_worker", "stop_a_worker"]

_BACKENDS = text("SELECT pid FROM pg_stat_activity WHERE usename = :role ORDER BY pid")

_RECOVERS = 0.05
"""How often a database that recovers is asked whether it has, in seconds."""


def stop_a_worker(stage: Stage, chance: Random) -> Generator[float, None, None]:
    """SIGSTOP, wherever it is, for up to several leases."""
    worker = chance.choice(stage.workers)
    worker.stop()
    try:
        yield stage.settings.ttl * chance.uniform(0.2, 4.0)
    finally:
        worker.resume()


def kill_a_worker(stage: Stage, chance: Random) -> Generator[float, None, None]:
    """SIGKILL; the run starts another one."""
    chance.choice(stage.workers).kill()
    yield 0.0


def kill_a_backend(stage: Stage, chance: Random) -> Generator[float, None, None]:
    """SIGKILL of a worker's server process: PostgreSQL ends all others, and recovers."""
    with stage.owner.connect() as connection:
        pids = list(connection.execute(_BACKENDS, {"role": stage.role}).scalars())
    if not pids:
        return
    os.kill(chance.choice(pids), signal.SIGKILL)
    recovered = False
    while not recovered:
        yield _RECOVERS
        with suppress(OperationalError), stage.owner.connect() as connection:
            connection.execute(_BACKENDS, {"role": stage.role})
            recovered = True

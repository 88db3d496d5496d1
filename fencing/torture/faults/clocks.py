"""The time of day of a worker jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.faults.missing import MissedError

if TYPE_CHECKING:
    from random import Random

    from fencing.torture.faults.kinds import Steps
    from fencing.torture.stage import Stage

__all__ = ["HOUR", "jump"]

HOUR = 3600.0


def jump(stage: Stage, chance: Random) -> Steps:
    """Set a worker's clock forward or back by up to an hour, and right again later."""
    clocks = stage.ways.clocks
    if not clocks:
        raise MissedError
    number = chance.choice(sorted(clocks))
    yield f"w{number}"
    clocks[number].set(chance.choice((-HOUR, HOUR, chance.uniform(-HOUR, HOUR))))
    try:
        yield stage.settings.ttl * chance.uniform(0.2, 4.0)
    finally:
        clocks[number].set(0.0)

"""Workers that stop and end wherever they happen to be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

    from fencing.torture.faults.kinds import Steps
    from fencing.torture.stage import Stage

__all__ = ["kill_a_worker", "stop_a_worker"]


def stop_a_worker(stage: Stage, chance: Random) -> Steps:
    """SIGSTOP, wherever it is, for up to several leases."""
    worker = chance.choice(stage.workers)
    worker.stop()
    try:
        yield worker.name
        yield stage.settings.ttl * chance.uniform(0.2, 4.0)
    finally:
        worker.resume()


def kill_a_worker(stage: Stage, chance: Random) -> Steps:
    """SIGKILL; the run starts another one."""
    worker = chance.choice(stage.workers)
    worker.kill()
    yield worker.name

"""A lock service of one server."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from fencing.torture.faults.kinds import MissedError
from fencing.torture.services.base import LockServers, away, kill, some_leases, stop

if TYPE_CHECKING:
    from collections.abc import Generator
    from random import Random

    from fencing.embedded.etcd import EtcdProcess
    from fencing.embedded.zookeeper import ZooKeeperProcess
    from fencing.torture.stage import Stage

__all__ = ["SingleServer"]

_COPY = "copy"


class SingleServer(LockServers):
    """One server that keeps what it has acknowledged.

    Attributes:
        server: The server.
    """

    server: EtcdProcess | ZooKeeperProcess

    def start(self, stage: Stage) -> None:  # noqa: ARG002 - as its base has it
        """Start it."""
        self.server.start()

    def url(self, worker: str) -> str:  # noqa: ARG002 - the same for all
        """Its address."""
        return self.server.url

    def close(self) -> None:
        """End it."""
        self.server.close()

    def _kill(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """SIGKILL; what it has acknowledged is with the system, and there again."""
        yield from kill(self.server, some_leases(stage, chance))

    def _stop(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        yield from stop(self.server, some_leases(stage, chance))

    def _end(self) -> None:
        if self.server.pid is None:
            raise MissedError
        self.server.kill()

    def _restore(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A copy from some time before is put in its place: its numbers are given out again."""
        self._end()
        self.server.keep(_COPY)
        try:
            yield from away(self.server, 0.0)
            yield some_leases(stage, chance, 6.0)
            if self.server.pid is None:
                return
            self.server.kill()
            self.server.restore(_COPY)
            yield from away(self.server, some_leases(stage, chance))
        finally:
            shutil.rmtree(self.server.process.directory / _COPY)

    def _forget(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """It comes back without anything, and counts from 1."""
        self._end()
        self.server.forget()
        yield from away(self.server, some_leases(stage, chance))

"""One etcd."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from fencing.embedded.etcd import EtcdProcess
from fencing.locks.etcd.acquiring import WAIT_SECONDS
from fencing.torture.services.base import away, lock_fault, some_leases
from fencing.torture.services.single import SingleServer

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from random import Random

    from fencing.torture.faults.kinds import FaultKind
    from fencing.torture.stage import Stage

__all__ = ["EtcdServers"]

_COPY = "copy"


class EtcdServers(SingleServer):
    """One etcd that keeps what it has acknowledged."""

    name = "etcd"
    # So long is the place of a waiter kept that has died or stands still, and looked at late.
    lingers = WAIT_SECONDS + 1.0

    server: EtcdProcess

    def __init__(self) -> None:
        self.server = EtcdProcess()

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to it."""
        return (
            lock_fault("etcd killed", self._kill),
            lock_fault("etcd stopped", self._stop),
            lock_fault("etcd restored", self._restore, weight=0.5, breaks_order=True),
            lock_fault("etcd emptied", self._forget, weight=0.5, breaks_order=True),
        )

    def _restore(self, stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A copy from some time before is put in its place: its revisions are given out again."""
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
        """It comes back without anything, and begins at revision 1."""
        self._end()
        self.server.forget()
        yield from away(self.server, some_leases(stage, chance))

"""One etcd."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.embedded.etcd import EtcdProcess
from fencing.locks.etcd.acquiring import WAIT_SECONDS
from fencing.torture.services.base import lock_fault
from fencing.torture.services.single import SingleServer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.torture.faults.kinds import FaultKind

__all__ = ["EtcdServers"]


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

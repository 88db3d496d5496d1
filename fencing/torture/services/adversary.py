"""The adversary, who needs no server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.locks import ADVERSARY
from fencing.torture.services.base import LockServers

if TYPE_CHECKING:
    from fencing.torture.stage import Stage

__all__ = ["AdversaryServers"]


class AdversaryServers(LockServers):
    """No servers: each worker has an adversary of its own, see :mod:`fencing.torture.adversary`."""

    name = "adversary"
    keeps_order = False

    def start(self, stage: Stage) -> None:
        """Nothing has to be started."""

    def url(self, worker: str) -> str:  # noqa: ARG002 - the same for all
        """What a worker recognises it by."""
        return ADVERSARY

    def close(self) -> None:
        """Nothing has to be ended."""

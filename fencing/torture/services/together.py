"""A lock service of several servers, which start and end together."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from fencing.torture.services.base import LockServers

if TYPE_CHECKING:
    from fencing.embedded.cluster import ValkeyCluster
    from fencing.embedded.sentinel import Watched
    from fencing.torture.stage import Stage

__all__ = ["ServersTogether"]


class ServersTogether(LockServers):
    """Servers that know each other, and have one address.

    Args:
        servers: They, not started.
    """

    def __init__(self, servers: ValkeyCluster | Watched) -> None:
        self._servers = servers
        self._stack = ExitStack()

    def start(self, stage: Stage) -> None:  # noqa: ARG002 - as its base has it
        """Start all, and wait until they know each other."""
        self._stack.enter_context(self._servers)

    def url(self, worker: str) -> str:  # noqa: ARG002 - the same for all
        """Their address."""
        return self._servers.url

    def close(self) -> None:
        """End all."""
        self._stack.close()

"""Redis whose primary fails and is replaced: by its cluster, or by Sentinel."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
from redis.crc import key_slot

from fencing.embedded.asking import until
from fencing.embedded.cluster import SLOTS, ValkeyCluster
from fencing.embedded.sentinel import SERVICE, Watched

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from fencing.embedded import ValkeyProcess

__all__ = ["HOW", "STAGES", "ByCluster", "BySentinel"]

HOW = ["killed", "handed over", "stopped"]
"""How a primary is replaced: SIGKILL; by command, with both running; SIGSTOP."""


class _Stage:
    """Where primaries fail. To be entered; everything ends with it."""

    servers: ValkeyCluster | Watched

    def client(self, kind: str) -> Any:
        """A client of a kind, "sync" or "async"; to be closed."""
        raise NotImplementedError

    def names(self, count: int) -> list[str]:
        """Resources that have the same primary."""
        raise NotImplementedError

    @property
    def primary(self) -> ValkeyProcess:
        """That primary."""
        raise NotImplementedError

    def ask(self, server: ValkeyProcess, *words: str | int) -> Any:
        """Run a command on one server."""
        return self.servers.ask(server, *words)

    def replace(self, how: str) -> None:
        """Replace the primary, in one of the ways of `HOW`, and wait until another is in charge."""
        old = self.primary
        if how == "handed over":
            self._hand_over(old)
        elif how == "killed":
            old.kill()
        else:
            self._suspend(old)
        self._await_another(old)

    def cut_off(self) -> None:
        """Let no replica have what is written from now on; the primary itself goes on."""
        self.ask(self.primary, "ACL SETUSER", "default", "-psync", "-sync")
        self.ask(self.primary, "CLIENT KILL", "TYPE", "replica")

    def _suspend(self, old: ValkeyProcess) -> None:
        old.suspend()

    def _hand_over(self, old: ValkeyProcess) -> None:
        raise NotImplementedError

    def _await_another(self, old: ValkeyProcess) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        self.servers.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.servers.__exit__(kind, error, traceback)


class ByCluster(_Stage):
    """Three primaries and a replica of each."""

    def __init__(self) -> None:
        self.servers: ValkeyCluster = ValkeyCluster(nodes=3, replicas=1)

    def client(self, kind: str) -> Any:
        module: Any = redis if kind == "sync" else redis.asyncio
        # Not the one that fails: whom a client asks first is not what is tested.
        return module.RedisCluster(host="127.0.0.1", port=self.servers.nodes[1].port)

    def names(self, count: int) -> list[str]:
        names = (f"r{number}" for number in itertools.count())
        return list(itertools.islice(filter(self.has, names), count))

    @staticmethod
    def has(name: str) -> bool:
        """Whether the primary that fails has a resource."""
        return key_slot(name.encode()) < SLOTS // 3

    @property
    def primary(self) -> ValkeyProcess:
        return self.servers.primary_of(self.names(1)[0].encode())

    def _hand_over(self, old: ValkeyProcess) -> None:  # noqa: ARG002 - it is known
        self.ask(self.servers.replica_of(self.names(1)[0].encode()), "CLUSTER FAILOVER")

    def _await_another(self, old: ValkeyProcess) -> None:
        nodes = self.servers.nodes
        new = nodes[3 if old is nodes[0] else 0]
        running = [node for node in nodes if node.pid is not None and node is not old]

        def known() -> bool:
            return all(
                self.ask(node, "CLUSTER INFO")["cluster_state"] == "ok"
                and self.ask(node, "CLUSTER SLOTS")[0][2][1] == new.port
                for node in running
            )

        until(known, "there was no failover")


class BySentinel(_Stage):
    """A primary, two replicas and three Sentinels."""

    def __init__(self) -> None:
        self.servers: Watched = Watched()

    def client(self, kind: str) -> Any:
        module: Any = redis.sentinel if kind == "sync" else redis.asyncio.sentinel
        return module.Sentinel(self.servers.addresses).master_for(SERVICE)

    def names(self, count: int) -> list[str]:
        return [f"r{number}" for number in range(count)]

    @property
    def primary(self) -> ValkeyProcess:
        return self.servers.primary

    def _suspend(self, old: ValkeyProcess) -> None:
        # A Sentinel on the same machine hangs as well; it is the one that clients ask first.
        self.servers.hang(0)
        super()._suspend(old)
        # Of two that are left each might vote for itself, and they would begin again only after
        # eight seconds, when callers have given up.
        self.ask(self.servers.sentinels[1], "SENTINEL FAILOVER", SERVICE)

    def _hand_over(self, old: ValkeyProcess) -> None:  # noqa: ARG002 - the Sentinels know it
        self.ask(self.servers.sentinels[0], "SENTINEL FAILOVER", SERVICE)

    def _await_another(self, old: ValkeyProcess) -> None:
        self.servers.await_another(old)


STAGES = [ByCluster, BySentinel]

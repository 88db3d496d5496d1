"""A Redis Cluster of embedded servers."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import redis

from fencing.embedded import ValkeyProcess
from fencing.embedded.places import free_port

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["ValkeyCluster"]

SLOTS = 16384
FORM_SECONDS = 20.0


class ValkeyCluster:
    """Primaries that share the slots; no replicas.

    Args:
        nodes: How many.
    """

    def __init__(self, nodes: int) -> None:
        self._stack = contextlib.ExitStack()
        self._buses = [free_port() for _ in range(nodes)]
        self.nodes = [
            ValkeyProcess("--cluster-enabled", "yes", "--cluster-port", str(bus))
            for bus in self._buses
        ]

    @property
    def port(self) -> int:
        """The port of one node, on 127.0.0.1."""
        return self.nodes[0].port

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            clients: list[Any] = []
            for number, node in enumerate(self.nodes):
                stack.enter_context(node)
                client = stack.enter_context(redis.Redis.from_url(node.url))
                first, last = (SLOTS * part // len(self.nodes) for part in (number, number + 1))
                client.execute_command("CLUSTER ADDSLOTSRANGE", first, last - 1)
                clients.append(client)
            for node, bus in zip(self.nodes, self._buses, strict=True):
                clients[0].execute_command("CLUSTER MEET", "127.0.0.1", node.port, bus)
            deadline = time.monotonic() + FORM_SECONDS
            while not all(self._formed(client) for client in clients):
                if time.monotonic() > deadline:
                    raise TimeoutError("the cluster did not form")
                time.sleep(0.05)  # nodes tell nobody that they have met
            self._stack = stack.pop_all()
        return self

    def _formed(self, client: Any) -> bool:
        info = client.execute_command("CLUSTER INFO")
        return bool(info["cluster_state"] == "ok" and int(info["cluster_size"]) == len(self.nodes))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

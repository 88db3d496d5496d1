"""A Redis Cluster of embedded servers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from redis.crc import key_slot

from fencing.embedded.asking import ask, until
from fencing.embedded.valkey import ValkeyProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["SLOTS", "ValkeyCluster"]

SLOTS = 16384
NODE_TIMEOUT = 1000
"""After how long a node counts as failed, in milliseconds."""

# fmt: off
SETTINGS = (
    "--cluster-node-timeout", str(NODE_TIMEOUT),
    "--repl-diskless-sync-delay", "0",
    "--repl-ping-replica-period", "1",
    # A replica that is behind may take over: what locks in a cluster have to live with.
    "--cluster-replica-validity-factor", "0",
)
# fmt: on


class _Node(ValkeyProcess):
    """A server of a cluster.

    Args:
        *arguments: Further command-line arguments, for settings.

    Attributes:
        bus: Its other port, on which the other nodes find it.
    """

    def __init__(self, *arguments: str) -> None:
        super().__init__("--cluster-enabled", "yes", *arguments)
        self.bus = self._free_port()

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self.bus = self._free_port()

    def _ports(self) -> Sequence[str]:
        return *super()._ports(), "--cluster-port", str(self.bus)


class ValkeyCluster:
    """Primaries that share the slots evenly, and replicas of theirs.

    Args:
        nodes: How many primaries.
        replicas: How many replicas each of them has.
        spare: How many members have no slots and replicate nobody.
        settings: Further command-line arguments of each, for other settings.

    Attributes:
        nodes: All servers: the first primaries, then their replicas, in the order of the primaries,
            then those to spare. Failovers may change the roles.
    """

    def __init__(
        self, nodes: int, *, replicas: int = 0, spare: int = 0, settings: Sequence[str] = ()
    ) -> None:
        self._stack = contextlib.ExitStack()
        self._primaries = nodes
        self._replicas = replicas
        count = nodes * (1 + replicas) + spare
        self.nodes = [_Node(*SETTINGS, *settings) for _ in range(count)]

    @property
    def port(self) -> int:
        """The port of one node, on 127.0.0.1."""
        return self.nodes[0].port

    @property
    def url(self) -> str:
        """Its address, for a lock service."""
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes[:2])

    def ask(self, node: ValkeyProcess, *words: str | int) -> Any:  # noqa: ANN401 - as it answers
        """Run a command on one node.

        Args:
            node: Which.
            *words: The command, such as ``"CLUSTER FAILOVER"``, and its arguments.
        """
        return ask(node, *words)

    def name_of(self, node: ValkeyProcess) -> str:
        """What the cluster calls a node."""
        return str(self.ask(node, "CLUSTER MYID").decode())

    def role_of(self, node: ValkeyProcess) -> str:
        """``"master"`` or ``"slave"``, as it says itself."""
        return str(self.ask(node, "ROLE")[0].decode())

    def primary_of(self, key: bytes) -> ValkeyProcess:
        """The running node that is the primary of a key, as it says itself."""
        return self._serving(key_slot(key), primary=True)

    def replica_of(self, key: bytes) -> ValkeyProcess:
        """A running replica of a key's primary."""
        return self._serving(key_slot(key), primary=False)

    def _serving(self, slot: int, *, primary: bool) -> ValkeyProcess:
        for node in self.nodes:
            if node.pid is None:
                continue
            me = self.name_of(node)
            for first, last, *members in self.ask(node, "CLUSTER SLOTS"):
                names = [str(member[2].decode()) for member in members]
                if first <= slot <= last and me in names and primary == (me == names[0]):
                    return node
        raise LookupError(slot)

    def await_in_step(self, replica: ValkeyProcess) -> None:
        """Wait until a replica is linked to its primary: it has all that was written before."""

        def linked() -> bool:
            info = self.ask(replica, "INFO", "replication")
            return bool(info.get("master_link_status") == "up")

        until(linked, "the replica was not linked to its primary")

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for node in self.nodes:
                stack.callback(node.close)
                node.launch()
            for node in self.nodes:
                node.await_ready()
            for number, node in enumerate(self.nodes[: self._primaries]):
                first, last = (SLOTS * part // self._primaries for part in (number, number + 1))
                self.ask(node, "CLUSTER ADDSLOTSRANGE", first, last - 1)
            for number, node in enumerate(self.nodes):
                # So that whatever happens first, no two nodes are of one age.
                self.ask(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
            until(self._met, "the nodes did not meet")
            self._replicate()
            until(self._formed, "the cluster did not form")
            self._stack = stack.pop_all()
        return self

    def _replicate(self) -> None:
        for number in range(self._primaries * self._replicas):
            replica = self.nodes[self._primaries + number]
            primary = self.nodes[number // self._replicas]
            self.ask(replica, "CLUSTER REPLICATE", self.name_of(primary))
        for replica in self.nodes[self._primaries : self._primaries * (1 + self._replicas)]:
            self.await_in_step(replica)

    def _met(self) -> bool:
        """Whether all know each other; the first is told of whom it does not know, or no longer.

        It forgets who has not answered it for a second.
        """
        first, *others = self.nodes
        told = self._known_to(first)
        for node in others:
            if node.port not in told:
                self.ask(first, "CLUSTER MEET", "127.0.0.1", node.port, node.bus)
        ports = {node.port for node in self.nodes}
        return all(
            {port for port, shaking in self._known_to(node).items() if not shaking} == ports
            for node in self.nodes
        )

    def _known_to(self, node: ValkeyProcess) -> dict[int, bool]:
        """The ports of those that a node knows, and whether they have still to shake hands."""
        known = self.ask(node, "CLUSTER NODES")
        return {
            int(address.rpartition(":")[2]): "handshake" in each["flags"]
            for address, each in known.items()
        }

    def _formed(self) -> bool:
        for node in self.nodes:
            info = self.ask(node, "CLUSTER INFO")
            slots = self.ask(node, "CLUSTER SLOTS")
            members = sum(len(members) for _, _, *members in slots)
            if (
                info["cluster_state"] != "ok"
                or int(info["cluster_size"]) != self._primaries
                or members != self._primaries * (1 + self._replicas)
            ):
                return False
        return True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

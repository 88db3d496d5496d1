"""Which node of a Redis Cluster has which slot, as far as is known; without I/O and clock.

What is known comes from an answer to CLUSTER SLOTS, and from nodes that redirect a request. It is
*doubted* once a node has redirected one, or has not answered: then it is asked for again before the
next request, of any node but that one first. Until then what is known is good enough to try.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.crc import key_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Address", "Topology", "name_of", "slot_of"]

SLOTS = 16384

MOVED_SECONDS = 1.0
"""Shortest time from one look at all slots to the next, where nodes redirect requests: in the
course of resharding many do, and each says where to."""

Address = tuple[str, int]
"""Host and port of a node."""


def slot_of(key: bytes) -> int:
    """The slot of a key."""
    return key_slot(key)


def name_of(address: Address) -> str:
    """An address as one text."""
    return f"{address[0]}:{address[1]}"


class Topology:
    """What is known of a cluster.

    Args:
        startup: Nodes to ask first.
        remap: Makes of an address that the cluster tells the one to connect to.

    Attributes:
        known: Whether anything is.
        age: How often it has been learned.
    """

    def __init__(
        self,
        startup: Iterable[Address],
        remap: Callable[[Address], Address] | None = None,
    ) -> None:
        self._startup = list(dict.fromkeys(startup))
        self._remap = remap
        self._owners: list[Address | None] = [None] * SLOTS
        self._primaries: list[Address] = []
        self._replicas: list[Address] = []
        self._suspects: dict[Address, None] = {}
        self._looks_at = float("inf")
        self._learned_at = float("-inf")
        self.known = False
        self.age = 0

    def is_due(self, at: float) -> bool:
        """Whether it is to be asked for before the next request."""
        return not self.known or bool(self._suspects) or at >= self._looks_at

    def owner_of(self, slot: int) -> Address | None:
        """The primary that has a slot, if one is known."""
        return self._owners[slot]

    @property
    def primaries(self) -> list[Address]:
        """All primaries that have slots, in an order that lasts from call to call."""
        return sorted(self._primaries)

    @property
    def members(self) -> set[Address]:
        """All nodes that may be asked."""
        return {*self._primaries, *self._replicas, *self._startup}

    def to_ask(self) -> list[Address]:
        """Whom to ask, in turn: those that may not answer last."""
        everybody = dict.fromkeys((*self._primaries, *self._replicas, *self._startup))
        return [each for each in everybody if each not in self._suspects] + [
            each for each in everybody if each in self._suspects
        ]

    def learn(self, answer: list[Any], asked: Address, at: float) -> None:
        """Take what a node has answered to CLUSTER SLOTS, texts as bytes.

        Args:
            answer: The answer.
            asked: Which node.
            at: When (:func:`fencing.clock.now`, seconds).
        """
        owners: list[Address | None] = [None] * SLOTS
        primaries: dict[Address, None] = {}
        replicas: dict[Address, None] = {}
        for first, last, *members in answer:
            primary, *others = [self._address(host, port, asked) for host, port, *_ in members]
            owners[first : last + 1] = [primary] * (last + 1 - first)
            primaries[primary] = None
            replicas.update(dict.fromkeys(others))
        self._owners = owners
        self._primaries, self._replicas = list(primaries), list(replicas)
        self._suspects = {}
        self._looks_at, self._learned_at = float("inf"), at
        self.known = True
        self.age += 1

    def look_again(self) -> None:
        """All nodes are to be asked about: there may be some that no request has led to."""
        self._looks_at = float("-inf")

    def doubt(self, address: Address) -> None:
        """A node has not answered."""
        self._suspects[address] = None

    def redirect(self, slot: int, host: str, port: int, asked: Address) -> Address:
        """A node says that another has a slot; return its address.

        Args:
            slot: Which slot.
            host: Of the other; empty: that of the node itself.
            port: Of the other.
            asked: The node that says so.
        """
        address = self._owners[slot] = self._address(host, port, asked)
        self._looks_at = min(self._looks_at, self._learned_at + MOVED_SECONDS)
        return address

    def other(self, host: str, port: int, asked: Address) -> Address:
        """The address of a node to be asked this once, as another has told it."""
        return self._address(host, port, asked)

    def _address(self, host: bytes | str | None, port: int, asked: Address) -> Address:
        # A node that does not know by which name it is reached says nothing, or "?".
        told = host.decode() if isinstance(host, bytes) else host
        address = (told if told and told != "?" else asked[0], int(port))
        return address if self._remap is None else self._remap(address)

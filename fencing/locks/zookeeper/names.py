"""Where the nodes of a resource are in ZooKeeper, what they are called and what they hold.

::

    /fencing                             the namespace
    /fencing/locks/account:42            a container of the resource's nodes: its queue
    /fencing/locks/account:42/4f…1a-0000000007.2
                                         a holder or a waiter: its nonce, its place in the queue,
                                         and how often it has changed from the one to the other
    /fencing/offsets/account:42          what is added to its tokens, if anything
    /fencing/clock                       written to in order to learn ZooKeeper's time
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Content", "Node", "Space", "check_namespace", "content_of", "line_of", "offset_in"]

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_:@=,+")

_NODE = re.compile(r"([0-9a-f]{32})-([0-9]{10})(?:\.[0-9]{1,10})?", re.ASCII)
"""A nonce, a number, and how often the node has changed its kind."""

_CONTENT = re.compile(rb"1 ([0-9]{1,9}) (.*)", re.ASCII | re.DOTALL)
"""Of which version it is, the ttl in milliseconds, and the holder's label."""

_OFFSET = re.compile(rb"[0-9]{1,16}", re.ASCII)


def check_namespace(namespace: str) -> str:
    """Return ``namespace`` if it can name a node.

    Raises:
        TypeError: It is not a ``str``.
        ValueError: It is empty, holds a slash, a dot only, or what ZooKeeper allows in no name.
    """
    if not isinstance(namespace, str):
        raise TypeError(f"a namespace must be a str, not {type(namespace).__name__}")
    if not re.fullmatch(r"[A-Za-z0-9_:@.-]+", namespace) or set(namespace) <= {"."}:
        raise ValueError(
            f"a namespace is the name of a node, of letters, digits and _:@.-, not {namespace!r}"
        )
    if namespace == "zookeeper":
        raise ValueError("the namespace 'zookeeper' is ZooKeeper's own; take another")
    return namespace


def escaped(resource: str) -> str:
    """A resource's name as a node's: all that is not plain is percent-encoded.

    Every dot is, for ``.`` and ``..`` are no names; and so is whatever ZooKeeper forbids.
    """
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in resource.encode())


def resource_of(name: str) -> str | None:
    """The resource that a node's name stands for; ``None``: it is not one of ours."""
    try:
        resource = unquote_to_bytes(name).decode()
    except UnicodeDecodeError:
        return None
    return resource if resource and escaped(resource) == name else None


@dataclass(frozen=True, slots=True)
class Space:
    """The nodes of a namespace.

    Attributes:
        namespace: Its name.
        chroot: The node under which they are, for messages; paths are told without it.
    """

    namespace: str
    chroot: str = "/"

    @property
    def root(self) -> str:
        """The node under which are all others."""
        return f"/{self.namespace}"

    @property
    def locks(self) -> str:
        """The node under which are those of the resources."""
        return f"/{self.namespace}/locks"

    @property
    def offsets(self) -> str:
        """The node under which are the offsets."""
        return f"/{self.namespace}/offsets"

    @property
    def clock(self) -> str:
        """The node that is written to in order to learn ZooKeeper's time."""
        return f"/{self.namespace}/clock"

    def parent(self, resource: str) -> str:
        """The node under which holder and waiters of a resource are."""
        return f"{self.locks}/{escaped(resource)}"

    def offset(self, resource: str) -> str:
        """The node that holds a resource's offset."""
        return f"{self.offsets}/{escaped(resource)}"

    def resources(self, names: Iterable[str], prefix: str) -> list[str]:
        """The resources among the names of nodes that begin with a prefix."""
        found = [resource_of(name) for name in names]
        return sorted(name for name in found if name is not None and name.startswith(prefix))


@dataclass(frozen=True, slots=True)
class Node:
    """A holder or waiter.

    Attributes:
        path: The node.
        holder: Whose it is: the nonce of an acquisition.
        number: Its place in the queue, which the lowest heads.
    """

    path: str
    holder: str
    number: int


def line_of(parent: str, names: Iterable[str]) -> list[Node]:
    """The queue of a resource, in its order; nodes that are not ours are left out."""
    found = [_NODE.fullmatch(name) for name in names]
    nodes = [Node(f"{parent}/{each[0]}", each[1], int(each[2])) for each in found if each]
    return sorted(nodes, key=lambda node: node.number)


@dataclass(frozen=True, slots=True)
class Content:
    """What the node of a holder or waiter holds.

    Attributes:
        ttl: How long it may be held after it was written last, in milliseconds.
        owner: A label for people.
    """

    ttl: int
    owner: str

    def encoded(self) -> bytes:
        """As bytes."""
        return b"1 %d %b" % (self.ttl, self.owner.encode())


def content_of(data: bytes) -> Content | None:
    """What a node holds; ``None``: it was not written by a lock service."""
    found = _CONTENT.fullmatch(data)
    return found and Content(int(found[1]), found[2].decode(errors="replace"))


def offset_in(data: bytes) -> int | None:
    """The offset that a node holds; ``None``: it is none."""
    return int(data) if _OFFSET.fullmatch(data) else None

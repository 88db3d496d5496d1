r"""The keys of a namespace in etcd, and what is kept under them.

::

    fencing/lock/account:42\0<holder>    who holds the resource, and behind him who waits for it
    fencing/offset/account:42            what is added to revisions, where one was ever raised

Whoever wants a resource has a key of his own, his *place*. The place with the smallest create
revision has the lock; the others wait in the order of theirs. A resource holds no NUL, so none is
another's prefix.

Each place is attached to an etcd lease. Its number is derived from the holder's nonce, not chosen
by etcd: so a request can be repeated, and what came of one that was never answered can be revoked.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from fencing.request import MAX_TTL

__all__ = ["Keys", "check_namespace", "lease_id", "seconds_of", "ttl_and_label", "value_of"]

WAITING = "waiting"
"""What the lease of a waiter's place is for, in place of its length."""


def check_namespace(namespace: str) -> str:
    """Return ``namespace`` if keys can begin with it.

    Raises:
        TypeError: It is not a ``str``.
        ValueError: It is empty, no text in UTF-8, or another namespace's keys could begin so.
    """
    if not isinstance(namespace, str):
        raise TypeError(f"a namespace must be a str, not {type(namespace).__name__}")
    try:
        namespace.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a namespace must be text in UTF-8: {namespace!r}") from None
    parts = namespace.split("/")
    if not namespace or "\0" in namespace or "lock" in parts or "offset" in parts:
        raise ValueError(
            "a namespace must not be empty, and hold neither NUL nor a part 'lock' or 'offset' "
            f"between slashes: {namespace!r}"
        )
    return namespace


@dataclass(frozen=True, slots=True)
class Keys:
    r"""The keys of a namespace; a range is its first key and the first one behind it."""

    namespace: str

    def place(self, resource: str, holder: str) -> bytes:
        """Where a holder stands who has the resource, or waits for it."""
        return self.places(resource)[0] + holder.encode()

    def places(self, resource: str) -> tuple[bytes, bytes]:
        """The range of all places of a resource."""
        name = f"{self.namespace}/lock/{resource}".encode()
        return name + b"\0", name + b"\1"

    def offset(self, resource: str) -> bytes:
        """What is added to the create revision of a place for its token."""
        return f"{self.namespace}/offset/{resource}".encode()

    def all_places(self, prefix: str) -> tuple[bytes, bytes]:
        """The range of the places of all resources whose names begin so."""
        start = f"{self.namespace}/lock/{prefix}".encode()
        return start, start[:-1] + bytes([start[-1] + 1])  # UTF-8 has no byte 255

    def of_place(self, key: bytes) -> tuple[str, str] | None:
        """The resource and the holder of a place; ``None`` for a key of somebody else's."""
        start = f"{self.namespace}/lock/".encode()
        resource, nul, holder = key.removeprefix(start).rpartition(b"\0")
        if not (key.startswith(start) and nul and resource and holder):
            return None
        try:
            return resource.decode(), holder.decode()
        except UnicodeDecodeError:
            return None


def lease_id(holder: str, purpose: int | str) -> int:
    """The number of an etcd lease: of a holder, and so many seconds long."""
    digest = hashlib.sha256(f"{holder}:{purpose}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (2**63 - 1) + 1


def seconds_of(ttl: float) -> int:
    """How long the etcd lease is for a lease of ``ttl`` seconds: etcd counts in whole ones."""
    return math.ceil(ttl)


def value_of(ttl: float, label: str) -> bytes:
    """What a place holds: the ttl in milliseconds, and the owner's label."""
    return f"{math.ceil(ttl * 1000)}:{label}".encode()


def ttl_and_label(value: bytes) -> tuple[float, str]:
    """The ttl in seconds and the owner's label, of a place.

    Raises:
        ValueError: We have not written it.
    """
    ttl, colon, label = value.decode().partition(":")
    if not (colon and ttl.isascii() and ttl.isdecimal() and int(ttl) <= MAX_TTL * 1000):
        raise ValueError("not the value of a place")
    return int(ttl) / 1000, label

"""What a lock's object remembers of it, and what its steps are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencing.lease import BaseLease
    from fencing.locks.redis.scripts import Script

__all__ = ["GiveBack", "Grant", "Held", "Memory", "Reply", "Run"]


@dataclass(frozen=True, slots=True)
class Run:
    """Run a script on the lock's keys through the caller's client; send back a `Reply`."""

    script: Script
    value: bytes
    holder: str
    rest: tuple[str, ...]

    @property
    def arguments(self) -> list[bytes]:
        """Its ARGV: bytes, because a client encodes a ``str`` in whatever encoding it has."""
        return [self.value, self.holder.encode(), *(each.encode() for each in self.rest)]


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Run a release on a connection of its own, whatever happens; send back whether it succeeded.

    Attributes:
        release: What to run.
    """

    release: Run


@dataclass(frozen=True, slots=True)
class Reply:
    """What Redis answered.

    Attributes:
        answer: As the script's header says.
        asked_at: When the request was sent (:func:`fencing.clock.now`, seconds).
        at: When the answer was there (the same clock).
    """

    answer: list[str]
    asked_at: float
    at: float


@dataclass(frozen=True, slots=True)
class Held:
    """A lock that a thread has acquired, as its object remembers it.

    Attributes:
        value: What the lock's key holds.
        holder: The nonce of the acquisition; empty if only the value is known.
        lease: The lease; ``None`` if there is none.
        without: Why there is none.
    """

    value: bytes
    holder: str = ""
    lease: BaseLease | None = None
    without: str = "it was not acquired by this object"


@dataclass(frozen=True, slots=True)
class Grant:
    """The lock is ours.

    Attributes:
        value: What the lock's key holds.
        holder: The nonce of this acquisition.
        token: The fencing token.
        ttl: Length of the lock in seconds; ``None`` if it does not expire.
        asked_at: When the request that got it was sent (seconds).
    """

    value: bytes
    holder: str
    token: int
    ttl: float | None
    asked_at: float

    def held(self, lease: BaseLease | None = None, *, without: str = "") -> Held:
        """The lock as it is remembered, with its lease or why there is none."""
        return Held(self.value, self.holder, lease, without)


class Memory:
    """What an object remembers, for one thread or for all; the defaults are each thread's.

    Attributes:
        token: redis-py's: the value of the lock that was acquired.
        held: More about it; of another value, where ``token`` was set by hand.
        unsettled: The release that is to be run before anything else.
    """

    token: bytes | None = None
    held: Held | None = None
    unsettled: Run | None = None

    def forget(self, lease: BaseLease) -> None:
        """Remember a lease's lock no more, as after redis-py's own release."""
        if self.held is not None and self.held.lease is lease:
            self.token = self.held = None

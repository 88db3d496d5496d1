"""What comes of an acquisition, in every lock service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencing.errors import LockNotAcquiredError

if TYPE_CHECKING:
    from fencing.request import AcquireRequest

__all__ = ["MAX_LABEL", "Grant", "Held", "Outcome", "label_of", "not_acquired"]

MAX_LABEL = 200


@dataclass(slots=True)  # not frozen, which makes it dear to create
class Grant:
    """The lock is ours.

    Attributes:
        token: The token.
        asked_at: When the request was sent that it counts from, in seconds of
            :func:`fencing.clock.now`.
        handed_for: For how long it was handed over, in seconds, until it is renewed; ``None``: it
            was asked for, and lasts its ttl.
        repeated: Whether requests that were not answered may still be on their way.
        holder: The nonce it was granted to, where that is not the acquisition's; empty: it is.
        place: Where the lock service keeps it; its own matter.
        admitted_in: The database that has committed the token as the resource's mark along with
            it, as ``fencing.identity()`` tells it; empty: none has.
    """

    token: int
    asked_at: float
    handed_for: float | None = None
    repeated: bool = False
    holder: str = ""
    place: object = None
    admitted_in: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """The lock is another's.

    Attributes:
        left: How long it is held for, if not renewed, in seconds.
        token: The holder's token; empty where it could not be read.
        owner: The holder's label.
        waited: How long we have waited, in seconds.
    """

    left: float
    token: str
    owner: str
    waited: float


Outcome = Grant | Held


def not_acquired(request: AcquireRequest, held: Held) -> LockNotAcquiredError:
    """The error that says who holds the lock, and what to do about it."""
    holder = f"{held.owner or 'another holder'} (token {held.token or 'unknown'})"
    advice = (
        "wait longer (blocking_timeout), or try again later"
        if request.patience
        else "let the call wait (blocking, blocking_timeout), or try again later"
    )
    return LockNotAcquiredError(
        f"{request.resource!r} was not acquired in {held.waited:.3f} s: {holder} holds it, for "
        f"another {held.left:.3f} s unless renewed; {advice}",
        resource=request.resource,
        waited=held.waited,
    )


def label_of(request: AcquireRequest) -> str:
    """The owner, as a lock service keeps it for people who look at its locks."""
    return request.owner_label[:MAX_LABEL]

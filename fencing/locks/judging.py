"""What the answers about a lease that was granted mean, in every lock service.

Without I/O and without a clock, like :mod:`fencing.locks.asking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from fencing.errors import LeaseExpiredError, LeaseLostError, LockServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fencing.lease import BaseLease

__all__ = ["giving_back", "is_accounted_for", "lost", "note_renewed", "whose_now"]

AnswerT = TypeVar("AnswerT")


def giving_back(
    lease: BaseLease,
    asking: Generator[Any, Any, AnswerT],
    clean_up: Callable[[], Generator[Any, Any, Any]],
) -> Generator[Any, Any, AnswerT]:
    """Ask to take a lease back. Whatever comes of it, nothing can be done under it any more.

    Args:
        lease: The lease.
        asking: Asks, and returns the answer.
        clean_up: Asks once more, without heeding the answer, where the first was interrupted.

    Raises:
        LockServiceError: There was no answer; the lock ends by its ttl.
    """
    lease.note_releasing()
    try:
        return (yield from asking)
    except GeneratorExit:
        raise
    except LockServiceError:
        lease.note_released()
        raise
    except BaseException:
        lease.note_released()
        yield from clean_up()
        raise


def is_accounted_for(lease: BaseLease, *, started_at: float, taken: bool, repeated: bool) -> bool:
    """Whether a lease that was not found at its release was lost by nobody but ourselves.

    An earlier request of ours, whose answer was lost, has released it, and who waited for the lock
    may have it already; or the lock service has lost all it had, or an administrator has taken it.
    Either way nothing of it is left, and while it was trusted nobody can say that it was ever
    another's.

    Args:
        lease: The lease.
        started_at: When its release began (:func:`fencing.clock.now`, seconds).
        taken: Whether another holder has the lock.
        repeated: Whether there was an earlier request to release it.
    """
    return started_at < lease.trusted_until and (repeated or not taken)


def whose_now(*, taken: bool) -> str:
    """What has become of a lock that is not ours any more, for :func:`lost`."""
    return "another holder has the lock" if taken else "nobody holds the lock"


def lost(lease: BaseLease, found: str, *, at_release: bool = False) -> LeaseLostError:
    """Mark a lease as lost; return the error that says so.

    Args:
        lease: The lease.
        found: What the lock service has found instead of it.
        at_release: Whether it was being given back.
    """
    lease.note_lost(at_release=at_release)
    return LeaseLostError(
        f"the lease on {lease.resource!r} (token {lease.token}) is not ours any more: {found}; "
        "acquire it again and repeat the work from its first read",
        resource=lease.resource,
        token=lease.token,
    )


def note_renewed(
    lease: BaseLease,
    ttl: float,
    *,
    asked_at: float,
    at: float,
    in_background: bool = False,
    came: str = "the answer came",
) -> None:
    """The lock service has extended a lease.

    No service shortens one, so whichever of two answers is noted last, it is not later than what
    is kept there.

    Args:
        lease: The lease.
        ttl: By how much, in seconds.
        asked_at: When the request was sent that was answered (:func:`fencing.clock.now`, seconds).
        at: When it was answered (the same clock).
        in_background: Whether nobody waits for it.
        came: What came then, in words.

    Raises:
        LeaseExpiredError: That had run out before it was known.
    """
    lease.note_renewed(asked_at=asked_at, ttl=ttl, in_background=in_background)
    if at >= lease.trusted_until:
        raise LeaseExpiredError(
            f"the lease on {lease.resource!r} (token {lease.token}) was extended by {ttl} s, but "
            f"that had run out before {came}; acquire it again and repeat the work from its first "
            "read",
            resource=lease.resource,
            token=lease.token,
        )

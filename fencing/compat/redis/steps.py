"""What to ask Redis for a lock of redis-py's kind, and what its answers mean.

Without I/O and without a clock, as :mod:`fencing.locks.redis.steps`: generators that yield what is
to be done; the shells in :mod:`fencing.compat.redis.performing` do it, and send back or throw what
came of it.

redis-py decides when to ask, how long to wait and how often to repeat a request; what is decided
here is that its answers can be trusted:

* A repeated request finds what the first one did, whose answer was lost: it acquires the same lock
  again, and a release that has released is not an error.
* A request without an answer (an error, a cancellation) may have acquired the lock. It is given
  back, on a connection of its own; where that fails, too, before the next attempt. What was given
  back is not acquired by the request when it arrives late.
* Trust in the lease counts from when a request was sent. What might shorten the lock shortens
  that trust before it is sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import LockError, LockNotOwnedError

from fencing.compat.redis.model import GiveBack, Grant, Reply, Run
from fencing.lease import trust_ends
from fencing.locks.redis.scripts import Script
from fencing.request import MAX_TOKEN, MAX_TTL, check_floor, count_in
from fencing.state import LockState

if TYPE_CHECKING:
    from fencing.compat.redis.model import Held, Memory

__all__ = ["Steps", "acquire", "extend", "inspect", "raise_token", "release"]

T = TypeVar("T")

_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)  # of 64 bits, as Redis counts
_UNUSABLE = {
    "exhausted": "is at 2**53 - 1, above which tokens could repeat",
    "garbled": "is not a number from 0 upwards",
}

_PACKAGE = "fencing.compat.redis"
ACQUIRE = Script("acquire", _PACKAGE)
EXTEND = Script("extend", _PACKAGE)
INSPECT = Script("inspect", _PACKAGE)
RAISE = Script("raise", _PACKAGE)
RELEASE = Script("release", _PACKAGE)


Steps = Generator[Run | GiveBack, Any, T]


def acquire(
    name: object, memory: Memory, value: bytes, holder: str, timeout: float | None
) -> Steps[Grant | None]:
    """Try to acquire the lock once.

    Args:
        name: The lock's name, for errors.
        memory: What its object remembers.
        value: What to set the lock's key to.
        holder: The nonce of this acquisition.
        timeout: Length of the lock, in seconds; one that is 0 or ``None`` does not expire.

    Returns:
        The grant; ``None`` if another has it, or if the lock had run out before the answer came.

    Raises:
        LockError: No token can be issued.
    """
    if memory.unsettled is not None:
        yield memory.unsettled
        memory.unsettled = None
    milliseconds = int(timeout * 1000) if timeout else None  # as redis-py: whole ones, cut off
    ttl = None if milliseconds is None else milliseconds / 1000
    giving_back = _release(value, holder, unknown=True)
    try:
        reply: Reply = yield Run(
            ACQUIRE, value, holder, ("" if milliseconds is None else str(milliseconds),)
        )
        token = _fact(name, holder, reply, "granted", "held")
        if token is not None:
            _check(name, token)
            if ttl is None or reply.at < reply.asked_at + ttl:
                return Grant(value, holder, token, ttl, reply.asked_at)
            yield from _give_back(memory, giving_back)
    except GeneratorExit:
        raise
    except BaseException:
        yield from _give_back(memory, giving_back)
        raise
    return None


def release(name: object, memory: Memory, held: Held) -> Steps[None]:
    """Release the lock. Whatever comes of it, nothing can be done under its lease any more.

    Raises:
        LockNotOwnedError: It was not ours any more; its lease is marked as lost.
    """
    lease = held.lease
    try:
        reply: Reply = yield _release(held.value, held.holder, unknown=False)
        found = _fact(name, held.holder, reply, "released", "other")
    except GeneratorExit:
        raise
    except BaseException:
        if lease is not None:
            lease.note_released()
        yield from _give_back(memory, _release(held.value, held.holder, unknown=True))
        raise
    if found is None:
        if lease is not None:
            lease.note_lost()
        raise LockNotOwnedError(
            "Cannot release a lock that's no longer owned",
            lock_name=name,  # type: ignore[arg-type]  # redis-py passes what the caller named it
        )
    if lease is not None:
        lease.note_released()


def extend(name: object, held: Held, seconds: float, how: str, *, started_at: float) -> Steps[None]:
    """Give the lock another time to live.

    Args:
        name: The lock's name, for errors.
        held: The lock.
        seconds: How long.
        how: ``"add"``, ``"set"`` or ``"renew"``; see ``lua/extend.lua``.
        started_at: Now (:func:`fencing.clock.now`, seconds).

    Raises:
        LockNotOwnedError: It is not ours any more; its lease is marked as lost.
    """
    lease = held.lease
    milliseconds = int(seconds * 1000)  # as redis-py: whole ones, cut off
    if lease is not None:
        left = milliseconds / 1000
        if how == "add":
            left += lease.trusted_until - started_at
        # The answer may be lost, or late.
        if trust_ends(started_at, left) < lease.trusted_until and (
            how == "set" or milliseconds < 0
        ):
            lease.note_renewed(asked_at=started_at, ttl=left)
    reply: Reply = yield Run(EXTEND, held.value, held.holder, (str(milliseconds), how))
    left_then = _fact(name, held.holder, reply, "extended", "other")
    if left_then is None:
        if lease is not None:
            lease.note_lost()
        what = "reacquire" if how == "set" else "extend"
        raise LockNotOwnedError(
            f"Cannot {what} a lock that's no longer owned",
            lock_name=name,  # type: ignore[arg-type]  # see release
        )
    if lease is not None:
        lease.note_renewed(asked_at=reply.asked_at, ttl=min(left_then / 1000, MAX_TTL))


def raise_token(name: object, held: Held, floor: int) -> Steps[None]:
    """Give the lock's lease, which no database has admitted, a token above ``floor``.

    Raises:
        FencingUsageError: The lease has been admitted under its token; nothing was sent.
        LockNotOwnedError: The lock is not ours any more; the lease is marked as lost.
        LockError: The counter cannot go that high.
    """
    lease = held.lease
    assert lease is not None  # noqa: S101 - who calls this has looked
    check_floor(floor)
    lease.note_token(lease.token)  # changes nothing, and refuses an admitted lease
    reply: Reply = yield Run(RAISE, held.value, held.holder, (str(int(floor)),))
    token = _fact(name, held.holder, reply, "raised", "other")
    if token is None:
        lease.note_lost()
        raise LockNotOwnedError(
            "Cannot raise the fencing token of a lock that's no longer owned",
            lock_name=name,  # type: ignore[arg-type]  # see release
        )
    _check(name, token)
    lease.note_token(token)


def inspect(name: object, grant: Grant, resource: str) -> Steps[LockState]:
    """Look who has the lock; another's holder and token cannot be told, nor anybody's label."""
    reply: Reply = yield Run(INSPECT, grant.value, grant.holder, ())
    match reply.answer:
        case [found, echoed, counter, *left] if echoed == grant.holder:
            issued = count_in(counter)
            mine = found == "mine"
            return LockState(
                resource=resource,
                held=found != "free",
                token=issued if mine else None,
                holder=grant.holder if mine else None,
                remaining=0.0 if not left else math.inf if left == ["-1"] else int(left[0]) / 1000,
                counter=issued,
            )
    raise _nonsense(name, reply)


def _release(value: bytes, holder: str, *, unknown: bool) -> Run:
    return Run(RELEASE, value, holder, ("1" if unknown else "0",))


def _give_back(memory: Memory, release_: Run) -> Steps[None]:
    settled: bool = yield GiveBack(release_)
    if not settled:
        memory.unsettled = release_


def _fact(name: object, holder: str, reply: Reply, yes: str, no: str) -> int | None:
    """The number that an answer carries if it is ``yes``; ``None`` if it is ``no``."""
    match reply.answer:
        case [found, echoed, *facts] if echoed == holder:
            if found == no:
                return None
            if found in _UNUSABLE:
                raise _unusable(name, found)
            if found == yes and (not facts or _NUMBER.fullmatch(facts[0])):
                return int(facts[0]) if facts else 0
    raise _nonsense(name, reply)


def _check(name: object, token: int) -> None:
    """Refuse what is no token: somebody else has written the counter."""
    if not 1 <= token <= MAX_TOKEN:
        raise _unusable(name, "garbled" if token < 1 else "exhausted")


def _unusable(name: object, found: str) -> LockError:
    return LockError(
        f"no fencing token can be issued for the lock {name!r}: its counter {_UNUSABLE[found]}; "
        "set the field 'token' of the hash beside the lock back to the last token that was issued",
        lock_name=name,  # type: ignore[arg-type]  # see release
    )


def _nonsense(name: object, reply: Reply) -> LockError:
    return LockError(
        f"Redis answered {reply.answer!r} about the lock {name!r}, which is no answer to what "
        "was asked: is there a proxy in between, or a client shared between threads or processes "
        "that must not share it?",
        lock_name=name,  # type: ignore[arg-type]  # see release
    )

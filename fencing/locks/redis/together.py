"""What is asked to acquire several locks in one script, and what the answers mean.

Without I/O and without a clock, like :mod:`fencing.locks.redis.steps`. It never waits: who is to be
waited for is decided in :mod:`fencing.core.several`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fencing.lease import trust_ends
from fencing.locks.asking import NO_WAIT_SECONDS
from fencing.locks.outcome import Grant, label_of, not_acquired
from fencing.locks.redis.acquiring import TOO_LATE, held_of
from fencing.locks.redis.asking import UNKNOWN, Ask, Call
from fencing.locks.redis.durability import PLAIN, Durability
from fencing.locks.redis.scripts import ACQUIRE_ALL, RELEASE, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.errors import LockNotAcquiredError
    from fencing.locks.redis.asking import Reply, Steps
    from fencing.request import AcquireRequest

__all__ = ["acquire_all", "give_up"]

_NAMED = 3
"""How many resources a message names."""


def acquire_all(
    requests: Sequence[AcquireRequest],
    *,
    holders: Sequence[str],
    started_at: float,
    durability: Durability = PLAIN,
) -> Steps[list[Grant] | LockNotAcquiredError]:
    """Acquire all of them, or none if one is held; at once.

    Args:
        requests: At least one; they differ in resource and floor only.
        holders: The nonces of the acquisitions.
        started_at: Now (:func:`fencing.clock.now`, seconds).
        durability: What the service asks Redis to keep.

    Returns:
        A grant for each, trusted at the time of its answer; or the error that says which is held.

    Raises:
        LockServiceError: Redis is out of reach, or what it keeps cannot be a lock of ours.
    """
    first = requests[0]
    names = [request.resource for request in requests]
    deadline = started_at + first.patience
    ends = deadline if first.patience > 0 else started_at + NO_WAIT_SECONDS
    call = Call(first.resource, started_at, ends=ends)
    call.durability = durability
    call.to = tuple(names)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    call.about = f", resources {', '.join(map(repr, names[:_NAMED]))}{more}"
    common = holders[0], milliseconds(first.ttl), label_of(first), durability.keep
    each = [
        fact
        for request, holder in zip(requests, holders, strict=True)
        for fact in (holder, str(request.floor))
    ]
    too_late = 0
    maybe_ours = False
    try:
        while True:
            maybe_ours = True
            reply, facts = yield from call.ask(ACQUIRE_ALL, *common, *each)
            if reply.answer[0] != "granted":
                request, rest = _blamed(call, requests, reply, facts)
                held = held_of(_call_on(request, call), reply, rest, waited=call.at - started_at)
                # An earlier request, of which we never heard, may have taken what another has
                # taken from us in part since.
                maybe_ours = call.repeated
                if maybe_ours:
                    yield from _give_back(call, names, holders)
                return not_acquired(request, held)
            if len(facts) != len(requests):
                raise call.nonsense(reply)  # noqa: TRY301 - to be cleaned up after, too
            tokens = [
                _call_on(request, call).token_in([token])
                for request, token in zip(requests, facts, strict=True)
            ]
            call.require_acknowledged(reply, "the locks, so they were given back")
            if call.at < trust_ends(reply.asked_at, first.ttl):
                return [Grant(token, reply.asked_at, repeated=call.repeated) for token in tokens]
            too_late += 1
            if too_late == TOO_LATE or call.at >= deadline:
                raise call.error(  # noqa: TRY301 - to be cleaned up after, too
                    f"the locks were granted, but a ttl of {first.ttl} s had run out before the "
                    f"answer came ({call.at - reply.asked_at:.3f} s): ask for a longer ttl, or "
                    "look why Redis answers so slowly"
                )
            yield from _give_back(call, names, holders, known=True)
    except GeneratorExit:
        raise
    except BaseException:
        if maybe_ours or call.repeated:
            yield from _give_back(call, names, holders)
        raise


def _blamed(
    call: Call, requests: Sequence[AcquireRequest], reply: Reply, facts: list[str]
) -> tuple[AcquireRequest, list[str]]:
    """The request that an answer is about, and its other facts."""
    place = facts[0] if facts else ""
    if not (place.isdecimal() and int(place) < len(requests)):
        raise call.nonsense(reply)
    return requests[int(place)], facts[1:]


def _call_on(request: AcquireRequest, call: Call) -> Call:
    """The same call, for an error that is about one resource."""
    return Call(request.resource, call.at, ends=call.ends)


def _give_back(
    call: Call, names: Sequence[str], holders: Sequence[str], *, known: bool = False
) -> Steps[None]:
    """Release what we may have acquired, as `Call.clean_up` does; the ttl is the backstop."""
    arguments = () if known else (UNKNOWN,)

    def asking(name: str, holder: str, within: float) -> Ask:
        return Ask(RELEASE, (holder, *arguments), within, see_through=True, to=(name,))

    pairs = zip(names, holders, strict=True)
    yield from call.until_told(*[partial(asking, *each) for each in pairs])


def give_up(
    requests: Sequence[AcquireRequest], holders: Sequence[str], *, started_at: float
) -> Steps[None]:
    """Release what was granted to a caller that was interrupted before it knew."""
    names = [request.resource for request in requests]
    yield from _give_back(Call(names[0], started_at, ends=started_at), names, holders)

"""What to ask PostgreSQL about a lease that is held, and what its answers mean.

Everything here is a generator without I/O and without a clock, which
:mod:`fencing.locks.postgres.performing` performs. The rules are those of
:mod:`fencing.locks.asking`; how a lease is acquired is told in
:mod:`fencing.locks.postgres.acquiring`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from fencing.errors import FencingError, LockServiceError
from fencing.locks.asking import NO_WAIT_SECONDS, RELEASE_SECONDS, Trouble
from fencing.locks.judging import giving_back, is_accounted_for, lost, note_renewed, whose_now
from fencing.locks.postgres.asking import (
    FORCE_RELEASE,
    LOOK,
    RAISE_TOKEN,
    RELEASE,
    RENEW,
    SCAN,
    Call,
    milliseconds,
)
from fencing.schema.names import holder_name
from fencing.state import LockState

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.lease import BaseLease
    from fencing.locks.postgres.asking import Reply, Steps

__all__ = [
    "HolderName", "force_release", "inspect", "judge_renewals", "raise_token", "release", "renew",
    "renewals", "scan",
]  # fmt: skip

PAGE = 500
"""How many locks are listed at a time."""


class HolderName(str):
    """What PostgreSQL tells of a holder: a hash of it, which equals the holder's own nonce.

    Whoever knows the nonce recognises it; nobody can act under it who does not.
    """

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment] # what is equal to it has another hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        return str(self) in (str(other), holder_name(other))

    def __ne__(self, other: object) -> bool:
        return not self == other


def renew(lease: BaseLease, ttl: float, *, started_at: float) -> Steps[None]:
    """Extend a lease to ``ttl`` seconds from the moment the answered request was sent.

    Raises:
        LeaseLostError: It is not ours any more; it is marked as lost.
        LeaseExpiredError: It was extended, but the answer came after that, too, had run out.
        LockServiceError: PostgreSQL could not be asked; the lease is as it was.
    """
    call = Call(lease.resource, started_at, ends=lease.trusted_until)
    token = lease.token
    reply = yield from call.ask(RENEW, wanted=renewals([(lease, ttl)]))
    (state,) = _states(call, reply, 1)
    _judge_renewal(call, lease, ttl, reply, state, token)


def renewals(leases: Sequence[tuple[BaseLease, float]]) -> str:
    """What is asked to renew leases, each with its ttl in seconds."""
    return json.dumps(
        [
            {
                "resource": lease.resource,
                "holder": lease.holder,
                "token": lease.token,
                "ttl_ms": milliseconds(ttl),
            }
            for lease, ttl in leases
        ]
    )


def judge_renewals(
    leases: Sequence[tuple[BaseLease, float]], came: Reply | Trouble, tokens: Sequence[int]
) -> list[FencingError | None]:
    """What has come of renewals that were asked for in one statement; noted in the leases.

    Args:
        leases: Each with the ttl it was renewed with, in seconds.
        came: The answer, or why there is none.
        tokens: Those they were asked with.

    Returns:
        For each the error that :func:`renew` would raise; ``None``: it is renewed.
    """
    calls = [Call(each.resource, came.at, ends=each.trusted_until) for each, _ in leases]
    if isinstance(came, Trouble):
        return [call.error(came.help) for call in calls]
    outcomes: list[FencingError | None] = []
    try:
        states = _states(calls[0], came, len(leases)) if leases else []
    except LockServiceError as error:
        return [error] * len(leases)
    for call, (lease, ttl), state, token in zip(calls, leases, states, tokens, strict=True):
        try:
            _judge_renewal(call, lease, ttl, came, state, token, in_background=True)
        except FencingError as error:
            outcomes.append(error)
        else:
            outcomes.append(None)
    return outcomes


def _states(call: Call, reply: Reply, count: int) -> list[str | None]:
    found = {row[0]: row[1] for row in reply.rows}
    if set(found) != {str(place) for place in range(1, count + 1)}:
        raise call.nonsense(reply.rows)
    return [found[str(place)] for place in range(1, count + 1)]


def _judge_renewal(
    call: Call,
    lease: BaseLease,
    ttl: float,
    reply: Reply,
    state: str | None,
    token: int,
    *,
    in_background: bool = False,
) -> None:
    match state:
        case "renewed":
            note_renewed(
                lease, ttl, asked_at=reply.asked_at, at=call.at, in_background=in_background
            )
        case "other" if lease.raising or lease.token != token:
            # Ours under another token, perhaps; to be asked again when that is known.
            raise call.error("the lease was given another token meanwhile, and was not renewed")
        case "absent" | "other":
            raise lost(lease, whose_now(taken=state == "other"))
        case _:
            raise call.nonsense(reply.rows)


def release(lease: BaseLease, *, started_at: float) -> Steps[None]:
    """Give a lease back. Whatever comes of it, nothing can be done under the lease any more.

    Raises:
        LeaseLostError: It had been lost before; it is marked as lost.
        LockServiceError: PostgreSQL could not be told; the lock ends by its ttl.
    """
    call = Call(lease.resource, started_at, ends=started_at + RELEASE_SECONDS)
    asking = call.ask(
        RELEASE,
        resource=lease.resource,
        holder=lease.holder,
        # An early request to acquire it may still be on its way.
        give_up=lease.asked_again,
    )
    reply = yield from giving_back(
        lease, asking, lambda: call.clean_up((lease.resource, lease.holder))
    )
    match reply.rows[0][0]:
        case "released":
            lease.note_released()
        case "absent" | "other" as found:
            taken = found == "other"
            if not is_accounted_for(
                lease, started_at=started_at, taken=taken, repeated=call.repeated
            ):
                raise lost(lease, whose_now(taken=taken), at_release=True)
            lease.note_released()
        case _:
            lease.note_released()
            raise call.nonsense(reply.rows)


def raise_token(lease: BaseLease, floor: int, *, started_at: float) -> Steps[None]:
    """Give a lease that is still ours, and that no guard has admitted, a token above ``floor``.

    Where its own database has admitted it, its new token is admitted with it, as long as the old
    one is still the mark.

    Raises:
        FencingUsageError: The lease has been admitted under its token; nothing was sent.
        LeaseLostError: It is not ours any more; it is marked as lost.
        LockServiceError: PostgreSQL could not be asked, or a transaction under the lease is open.
    """
    lease.note_token(lease.token)  # changes nothing, and refuses an admitted lease
    call = Call(lease.resource, started_at, ends=lease.trusted_until)
    lease.raising = True  # renewals that are on their way carry the old one
    try:
        reply = yield from call.ask(
            RAISE_TOKEN,
            resource=lease.resource,
            holder=lease.holder,
            floor=floor,
            admitted=bool(lease.admitted_in),
        )
        match reply.rows[0]:
            case "raised", token:
                raised = call.token_in(token)
                if raised <= floor:
                    raise call.nonsense(reply.rows)
                lease.note_token(raised)
            case ("absent" | "other") as found, _:
                raise lost(lease, whose_now(taken=found == "other"))
            case "busy", _:
                raise call.error(
                    "the lease's token cannot be raised while a transaction under it is open; "
                    "commit or roll back first"
                )
            case "exhausted", _:
                raise call.exhausted()
            case _:
                raise call.nonsense(reply.rows)
    finally:
        lease.raising = False


def inspect(resource: str, *, started_at: float) -> Steps[LockState]:
    """Who holds a resource."""
    call = Call(resource, started_at, ends=started_at + NO_WAIT_SECONDS)
    reply = yield from call.ask(LOOK, resource=resource)
    held, owner, token, holder, left, counter, waiters = reply.rows[0]
    if held != "t":
        return LockState(resource=resource, counter=int(counter or 0), waiters=int(waiters or 0))
    return LockState(
        resource=resource,
        held=True,
        owner=owner or "",
        token=call.token_in(token),
        holder=HolderName(holder),
        remaining=float(left or 0) / 1000,
        counter=int(counter or 0),
        waiters=int(waiters or 0),
    )


def scan(prefix: str, after: str, *, started_at: float) -> Steps[list[str]]:
    """The names of the next locks that are held; fewer than a page: there are no more."""
    call = Call("", started_at, ends=started_at + NO_WAIT_SECONDS)
    reply = yield from call.ask(SCAN, prefix=prefix, after=after, limit=PAGE)
    return [row[0] or "" for row in reply.rows]


def force_release(resource: str, *, started_at: float) -> Steps[bool]:
    """Take a lock from whoever holds it now; whether it was taken from somebody.

    A request that is repeated, or comes late, takes nothing from his successor.
    """
    state = yield from inspect(resource, started_at=started_at)
    if state.holder is None:
        return False
    call = Call(resource, started_at, ends=started_at + NO_WAIT_SECONDS + RELEASE_SECONDS)
    reply = yield from call.ask(FORCE_RELEASE, resource=resource, named=state.holder)
    # Gone by itself just now, unless it was an earlier request of ours that took it.
    return reply.rows[0][0] == "t" or call.repeated

"""Renewing, releasing and healing a lease in ZooKeeper: what to ask, and what the answers mean.

Without I/O and without a clock; the rules are those of :mod:`fencing.locks.asking`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.errors import FencingError, LockServiceError
from fencing.locks.asking import RELEASE_SECONDS, Trouble
from fencing.locks.judging import is_accounted_for, lost, note_renewed
from fencing.locks.zookeeper.asking import Call, Delete, Get, Place, Refused, Set
from fencing.locks.zookeeper.names import Content
from fencing.locks.zookeeper.tokens import lift

if TYPE_CHECKING:
    from fencing.lease import BaseLease
    from fencing.locks.zookeeper.asking import Reply, Steps
    from fencing.locks.zookeeper.names import Space

__all__ = ["judge_renewal", "raise_token", "release", "renew", "renewal_of"]

_LABEL_CHARACTERS = 200

_GONE = "it has run out or was taken away"


def renew(lease: BaseLease, ttl: float, *, started_at: float, space: Space) -> Steps[None]:
    """Extend a lease to ``ttl`` seconds from the moment the answered request was sent.

    Raises:
        LeaseLostError: It is not ours any more; it is marked as lost.
        LeaseExpiredError: ZooKeeper has extended it, but answered after that had run out, too.
        LockServiceError: ZooKeeper could not be asked; the lease is as it was.
    """
    call = Call(space, lease.resource, started_at, ends=lease.trusted_until)
    reply = yield from call.ask(renewal_of(lease, ttl))
    _judge_renewal(call, lease, ttl, reply)


def renewal_of(lease: BaseLease, ttl: float) -> Set:
    """What is asked to renew a lease."""
    place = _place_of(lease)
    owner = lease.owner[:_LABEL_CHARACTERS]
    return Set(place.path, lambda at: Content(place.ttl_for(ttl, at), owner).encoded())


def judge_renewal(
    lease: BaseLease, ttl: float, came: Reply | Trouble, space: Space
) -> FencingError | None:
    """What has come of a renewal that travelled with others; noted in the lease.

    Returns:
        The error that :func:`renew` would raise; ``None``: it is renewed.
    """
    call = Call(space, lease.resource, came.at, ends=lease.trusted_until)
    if isinstance(came, Trouble):
        return call.error(came.help)
    try:
        _judge_renewal(call, lease, ttl, came, in_background=True)
    except FencingError as error:
        return error
    return None


def _judge_renewal(
    call: Call, lease: BaseLease, ttl: float, reply: Reply, *, in_background: bool = False
) -> None:
    if isinstance(reply.came[0], Refused):
        raise lost(lease, _GONE)
    note_renewed(lease, ttl, asked_at=reply.asked_at, at=call.at, in_background=in_background)


def release(lease: BaseLease, *, started_at: float, space: Space) -> Steps[None]:
    """Give a lease back. Whatever comes of it, nothing can be done under the lease any more.

    Raises:
        LeaseLostError: It had been lost before; it is marked as lost.
        LockServiceError: ZooKeeper could not be told; the lock ends by its ttl, or when it can be.
    """
    call = Call(space, lease.resource, started_at, ends=started_at + RELEASE_SECONDS)
    lease.note_releasing()
    try:
        reply = yield from call.ask(Delete(_place_of(lease).path))
        held = False
        if isinstance(reply.came[0], Refused) and not call.repeated:
            held = yield from _held_by_another(call)
    except GeneratorExit:
        raise
    except BaseException:
        lease.note_released()
        yield from call.sweep(lease.holder)
        raise
    if isinstance(reply.came[0], Refused) and not is_accounted_for(
        lease, started_at=started_at, taken=held, repeated=call.repeated
    ):
        raise lost(lease, _GONE, at_release=True)
    lease.note_released()


def _held_by_another(call: Call) -> Steps[bool]:
    line = yield from call.line()
    if not line:
        return False
    reply = yield from call.ask(Get(line[0].path))
    came = reply.came[0]
    return not isinstance(came, Refused) and not came[1].ephemeralOwner


def raise_token(lease: BaseLease, floor: int, *, started_at: float, space: Space) -> Steps[None]:
    """Give a lease that is still ours, and was never admitted, a token above ``floor``.

    Raises:
        FencingUsageError: The lease has been admitted under its token; nothing was sent.
        LeaseLostError: It is not ours any more; it is marked as lost.
        LockServiceError: ZooKeeper could not be asked, or the token would be too large.
    """
    lease.note_token(lease.token)  # changes nothing, and refuses an admitted lease
    call = Call(space, lease.resource, started_at, ends=lease.trusted_until)
    token = yield from lift(call, _place_of(lease).path, floor)
    if token is None:
        raise lost(lease, _GONE)
    lease.note_token(token)


def _place_of(lease: BaseLease) -> Place:
    place = lease.place
    if not isinstance(place, Place):
        raise LockServiceError(
            f"lock service, resource {lease.resource!r}: the lease was not granted by ZooKeeper; "
            "give it to the service that granted it",
            resource=lease.resource,
        )
    return place

"""What to ask etcd about a lease that was granted, and what the answers mean.

Without I/O and without a clock, like :mod:`fencing.locks.etcd.acquiring`.

A renewal keeps the etcd lease alive, and then puts the place again, attached to that lease: an
exchange of leases that has been asked for earlier, and arrives later, finds the place changed and
does nothing. A renewal for longer than the etcd lease lasts exchanges it for another. It is never
exchanged for a shorter one, so `renew(ttl)` with a smaller ``ttl`` shortens our trust alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.locks.asking import RELEASE_SECONDS
from fencing.locks.etcd import requests
from fencing.locks.etcd.asking import TRIES, Alive, Call
from fencing.locks.etcd.keys import lease_id, seconds_of, value_of
from fencing.locks.etcd.raising import raise_above
from fencing.locks.judging import giving_back, is_accounted_for, lost, note_renewed, whose_now
from fencing.locks.outcome import MAX_LABEL

if TYPE_CHECKING:
    from fencing.errors import LeaseLostError
    from fencing.lease import BaseLease
    from fencing.locks.etcd.asking import Steps
    from fencing.locks.etcd.keys import Keys

__all__ = ["raise_token", "release", "renew"]


def renew(
    keys: Keys,
    lease: BaseLease,
    ttl: float,
    *,
    started_at: float,
    ends: float | None = None,
    in_background: bool = False,
) -> Steps[None]:
    """Extend a lease to ``ttl`` seconds from the moment the answered request was sent.

    Args:
        keys: Those of the namespace.
        lease: The lease.
        ttl: Its new length, in seconds.
        started_at: Now (:func:`fencing.clock.now`, seconds).
        ends: When the call is to be over (the same clock); default: with the lease.
        in_background: Whether it is not its user who renews it.

    Raises:
        LeaseLostError: It is not ours any more; it is marked as lost.
        LeaseExpiredError: etcd has extended it, but answered after that, too, had run out.
        LockServiceError: etcd could not be asked; the lease is as it was.
    """
    ends = lease.trusted_until if ends is None else min(ends, lease.trusted_until)
    call = Call(keys, lease.resource, started_at, ends=ends)
    value = value_of(ttl, lease.owner[:MAX_LABEL])
    alive = yield from _keep_as_it_is(call, lease, ttl, value)
    if alive is None:
        alive = yield from _keep_what_there_is(call, lease, ttl, value)
    note_renewed(lease, ttl, asked_at=alive.asked_at, at=call.at, in_background=in_background)


def _keep_as_it_is(call: Call, lease: BaseLease, ttl: float, value: bytes) -> Steps[Alive | None]:
    """Keep the etcd lease of the ttl that the lease has; ``None`` if it is another one."""
    seconds = seconds_of(lease.ttl)
    if seconds_of(ttl) > seconds:
        return None
    number = lease_id(lease.holder, seconds)
    alive = yield from call.keep_alive(number)
    if alive is None:
        return None
    place = call.keys.place(lease.resource, lease.holder)
    done = yield from call.transact(
        [requests.attached(place, number)], [requests.put(place, value, number)], []
    )
    return alive if done.succeeded else None


def _keep_what_there_is(call: Call, lease: BaseLease, ttl: float, value: bytes) -> Steps[Alive]:
    """Look what the place is attached to, and see that this lasts long enough."""
    place = call.keys.place(lease.resource, lease.holder)
    for _ in range(TRIES):
        ours = yield from call.read(place)
        if ours is None:
            raise (yield from _lost(call, lease))
        number = ours.lease
        alive = yield from call.keep_alive(number)
        if alive is None:
            continue  # it is just running out
        if alive.seconds < seconds_of(ttl):
            number = lease_id(lease.holder, seconds_of(ttl))
            alive = yield from call.grant(number, seconds_of(ttl))
        done = yield from call.transact(
            [requests.modified(place, ours.modified)], [requests.put(place, value, number)], []
        )
        if done.succeeded:
            return alive
    raise call.error("the lease was changed again and again meanwhile, and was not renewed")


def release(keys: Keys, lease: BaseLease, *, started_at: float) -> Steps[None]:
    """Give a lease back. Whatever comes of it, nothing can be done under the lease any more.

    Raises:
        LeaseLostError: It had been lost before; it is marked as lost.
        LockServiceError: etcd could not be told; the lock ends by its ttl.
    """
    call = Call(keys, lease.resource, started_at, ends=started_at + RELEASE_SECONDS)
    place = keys.place(lease.resource, lease.holder)
    asking = call.transact(
        [requests.exists(place)],
        [requests.delete(place)],
        [requests.first(keys.places(lease.resource))],
    )
    body = requests.delete(place)["request_delete_range"]
    done = yield from giving_back(lease, asking, lambda: call.clean_up("kv/deleterange", body))
    taken = bool(done.found[0])
    if done.succeeded:
        lease.note_released()
        for ours in done.found[0]:
            # Nothing is attached to it any more.
            yield from call.attempt("lease/revoke", {"ID": str(ours.lease)})
    elif is_accounted_for(lease, started_at=started_at, taken=taken, repeated=call.repeated):
        lease.note_released()
    else:
        raise lost(lease, whose_now(taken=taken), at_release=True)


def raise_token(keys: Keys, lease: BaseLease, floor: int, *, started_at: float) -> Steps[None]:
    """Give a lease that is still ours, and was never admitted, a token above ``floor``.

    Raises:
        FencingUsageError: The lease has been admitted under its token; nothing was sent.
        LeaseLostError: It is not ours any more; it is marked as lost.
        LockServiceError: etcd could not be asked, or tokens cannot be that high.
    """
    lease.note_token(lease.token)  # changes nothing, and refuses an admitted lease
    call = Call(keys, lease.resource, started_at, ends=lease.trusted_until)
    place = keys.place(lease.resource, lease.holder)
    token = yield from raise_above(call, place, None, floor)
    if token is None:
        raise (yield from _lost(call, lease))
    lease.note_token(token)


def _lost(call: Call, lease: BaseLease) -> Steps[LeaseLostError]:
    """The place is gone; say whose the lock is now."""
    done = yield from call.transact([], [requests.first(call.keys.places(lease.resource))], [])
    return lost(lease, whose_now(taken=bool(done.found[0])))

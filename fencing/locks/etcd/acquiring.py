"""Acquiring one lock in etcd: what to ask, what the answers mean, and how one waits.

::

    in line ──turn──► lease, place if there is none ──► first: granted
                              │ somebody is there
                              ▼
                      short lease, place behind ──► watches the place before ──gone──► first: lease,
                              ▲                              │                          granted
                              └── the place is gone ─────────┘

* Who has the smallest create revision among the places of a resource has the lock. So a released
  lock belongs to whoever has waited longest at once, without anybody asking for it, and each waiter
  watches only the one before him.
* A place is attached to an etcd lease. A holder's lasts his ttl, rounded up to whole seconds, and
  at least as long as etcd's minimum (2 s by default). A waiter's is short (`WAIT_SECONDS`)
  whatever his ttl, and kept alive while he waits: if he dies or is stopped, the others wait no
  longer for him than that. It is exchanged for one of his ttl when he is first, by a transaction
  that fails if anything was done to his place meanwhile.
* *Trust* counts from when the etcd lease was asked for, or kept alive, by the request that was
  answered. So what we trust ends before what etcd keeps, which is longer by the rounding.
* The numbers of both leases come from the holder's nonce. A repeated request finds its own lease
  and its own place; and what was never answered is given up by revoking them: what arrives later
  finds no lease to be attached to, and does nothing. Only if the request for the lease arrives late
  as well does it leave a lock, for one ttl.
* Of the waiters of one process on one resource only the first has a place; the others stand in
  *line* behind it. A fair one has a place of its own, which they take one after the other; but of
  the fair ones of a process only the first watches, as none of the others can come before it.
* Nothing rests on the watch: a waiter looks again after `LOOK_SECONDS`.

The rules of retries and deadlines are those of :mod:`fencing.locks.asking`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fencing.lease import trust_ends
from fencing.locks.asking import NO_WAIT_SECONDS, RETRY_SECONDS
from fencing.locks.etcd import requests
from fencing.locks.etcd.asking import TRIES, Alive, Call, Line, Rank, Signal, Steps, Watch
from fencing.locks.etcd.keys import WAITING, lease_id, seconds_of, ttl_and_label, value_of
from fencing.locks.etcd.raising import raise_above
from fencing.locks.outcome import Grant, Held, label_of

if TYPE_CHECKING:
    from fencing.locks.etcd.answers import Kv
    from fencing.locks.etcd.keys import Keys
    from fencing.locks.outcome import Outcome
    from fencing.request import AcquireRequest

__all__ = ["acquire", "give_up"]

WAIT_SECONDS = 6
"""How long the place of a waiter is kept that is not heard of, in seconds."""

LOOK_SECONDS = 2.0
"""Longest time between two looks of a waiter, in seconds; within it is kept alive thrice."""


def acquire(
    keys: Keys, request: AcquireRequest, *, holder: str, started_at: float, in_line: bool = False
) -> Steps[Outcome]:
    """Acquire a lock, waiting for it as long as the request says.

    Args:
        keys: Those of the namespace.
        request: What the caller asks for.
        holder: The nonce of this acquisition.
        started_at: Now (:func:`fencing.clock.now`, seconds).
        in_line: Whether others of this process are before us.

    Returns:
        A grant that is trusted at the time of its answer, or who held the lock at the deadline.

    Raises:
        LockServiceError: etcd is out of reach, or what it keeps cannot be a lock of ours.
    """
    acquiring = _Acquiring(keys, request, holder, started_at)
    try:
        return (yield from acquiring.go_on(in_line=in_line))
    except GeneratorExit:
        raise
    except BaseException:
        yield from acquiring.clean_up()
        raise


def give_up(keys: Keys, request: AcquireRequest, holder: str, *, started_at: float) -> Steps[None]:
    """Release what may have been acquired, whatever has become of the acquisition's own steps."""
    acquiring = _Acquiring(keys, request, holder, started_at)
    acquiring.maybe_kept = acquiring.maybe_queued = True
    yield from acquiring.clean_up()


class _Acquiring:
    """An acquisition on its way: what may be left of it in etcd, and what it knows."""

    def __init__(self, keys: Keys, request: AcquireRequest, holder: str, started_at: float) -> None:
        self.request = request
        self.started_at = started_at
        self.deadline = started_at + request.patience
        patience = request.patience or NO_WAIT_SECONDS
        self.call = Call(keys, request.resource, started_at, ends=started_at + patience)
        if request.patience:
            self.call.attempts = math.inf
        self.place = keys.place(request.resource, holder)
        self.places = keys.places(request.resource)
        self.offset = keys.offset(request.resource)
        self.value = value_of(request.ttl, label_of(request))
        self.seconds = seconds_of(request.ttl)
        self.lease = lease_id(holder, self.seconds)
        self.waiting = lease_id(holder, WAITING)
        self.maybe_kept = False
        self.maybe_queued = False

    def go_on(self, *, in_line: bool) -> Steps[Outcome]:
        call = self.call
        if in_line:
            signal: Signal = yield Line(max(0.0, self.deadline - call.at))
            call.at = signal.at
        if not (in_line and self.request.fair):  # he would only find that others wait
            outcome = yield from self.at_once()
            if isinstance(outcome, Grant) or call.at >= self.deadline:
                return outcome
        while True:
            in_queue = yield from self.wait()
            if in_queue is not None:
                return in_queue
            # Our place was lost: we were stopped for too long, or etcd has forgotten it.
            yield from call.pause(RETRY_SECONDS)

    def at_once(self) -> Steps[Outcome]:
        """Take the lock if nobody has it and nobody waits for it."""
        call = self.call
        for _ in range(TRIES):
            self.maybe_kept = True
            alive = yield from call.grant(self.lease, self.seconds)
            done = yield from call.transact(
                [requests.empty(self.places)],
                [requests.put(self.place, self.value, self.lease), requests.get(self.offset)],
                [requests.first(self.places), requests.get(self.offset)],
            )
            if done.failed:
                continue
            offset = next(iter(done.found[1]), None)
            if done.succeeded:
                return (yield from self.granted(done.revision, offset, alive))
            first = self.first_in(done.found[0])
            if first.key == self.place:  # an earlier request of ours, of which we never heard
                return (yield from self.granted(first.created, offset, alive))
            if call.at >= self.deadline:
                yield from self.leave()
            return (yield from self.held_by(first, offset))
        raise self.too_late()

    def wait(self) -> Steps[Outcome | None]:
        """Take a place behind the others, and wait there; ``None`` if it was lost."""
        call = self.call
        self.maybe_queued = True
        yield from call.grant(self.waiting, WAIT_SECONDS)
        done = yield from call.transact(
            [requests.absent(self.place)],
            [requests.put(self.place, self.value, self.waiting)],
            [requests.get(self.place)],
        )
        if done.failed:
            return None
        created = done.revision if done.succeeded else self.first_in(done.found[0]).created
        while True:
            if self.request.fair and not (yield from self.is_first_here(created)):
                if (yield from call.keep_alive(self.waiting)) is None:
                    return None
                continue
            is_last = call.at >= self.deadline
            done = yield from call.transact(
                [requests.created(self.place, created)],
                [
                    requests.before(self.places, created),
                    requests.first(self.places),
                    requests.get(self.offset),
                ],
                [],
            )
            if not done.succeeded:
                return None
            if not done.found[0]:
                return (yield from self.take(created))
            if is_last:
                yield from self.leave()
                first, offset = self.first_in(done.found[1]), next(iter(done.found[2]), None)
                return (yield from self.held_by(first, offset))
            yield from self.watch(done.found[0][0], done.revision)
            if (yield from call.keep_alive(self.waiting)) is None:
                return None

    def is_first_here(self, created: int) -> Steps[bool]:
        """Whether no waiter of this process is before us, or it is time for the last look."""
        call = self.call
        left = max(0.0, self.deadline - call.at)
        signal: Signal = yield Rank(created, min(LOOK_SECONDS, left))
        call.at = signal.at
        return not signal.failed or call.at >= self.deadline

    def watch(self, before: Kv, revision: int) -> Steps[None]:
        """Wait until the place before ours is gone, or it is time to look again."""
        call = self.call
        seconds = max(0.0, min(LOOK_SECONDS, self.deadline - call.at))
        signal: Signal = yield Watch(before.key, revision + 1, seconds)
        call.at = signal.at
        if signal.failed:
            yield from call.pause(min(RETRY_SECONDS, max(0.0, self.deadline - call.at)))

    def take(self, created: int) -> Steps[Grant | None]:
        """Hold the lock that has become ours for its ttl; ``None`` if the place was lost."""
        call = self.call
        for _ in range(TRIES):
            alive = yield from call.grant(self.lease, self.seconds)
            done = yield from call.transact(
                # As it was put there by us: a request that comes late must not exchange the lease
                # of what was renewed since.
                [requests.modified(self.place, created)],
                [requests.put(self.place, self.value, self.lease), requests.get(self.offset)],
                [requests.get(self.place), requests.get(self.offset)],
            )
            if done.failed:
                continue
            offset = next(iter(done.found[1]), None)
            if not done.succeeded:
                ours = next(iter(done.found[0]), None)
                if ours is None or ours.created != created:
                    return None
            if call.repeated:
                # A request for a place may be on its way that would make another one.
                yield from call.revoke(self.waiting)
            return (yield from self.granted(created, offset, alive))
        raise self.too_late()

    def granted(self, created: int, offset: Kv | None, alive: Alive) -> Steps[Grant]:
        """The lock is ours; see that the token and the trust are as they should."""
        call, request = self.call, self.request
        token = call.token_of(created, offset)
        if token <= request.floor:
            raised = yield from raise_above(call, self.place, created, request.floor)
            if raised is None:
                raise self.too_late()
            token = raised
        if call.repeated or call.at >= trust_ends(alive.asked_at, request.ttl):
            # etcd may keep it for longer than that, and one request may be quick enough.
            again = (yield from call.keep_alive(self.lease)) if call.at < call.ends else None
            if again is None or call.at >= trust_ends(again.asked_at, request.ttl):
                raise self.too_late()
            alive = again
        return Grant(token, alive.asked_at)

    def too_late(self) -> Exception:
        return self.call.error(
            f"the lock was granted, but a ttl of {self.request.ttl} s had run out before the "
            "answer came: ask for a longer ttl, or look why etcd answers so slowly"
        )

    def first_in(self, found: list[Kv]) -> Kv:
        if not found:
            raise self.call.error(
                "etcd answered that there is a key, and then that there is none; is there a proxy "
                "in between?"
            )
        return found[0]

    def held_by(self, first: Kv, offset: Kv | None) -> Steps[Held]:
        """Who holds the lock."""
        call = self.call
        waited = call.at - self.started_at
        try:
            ttl, label = ttl_and_label(first.value)
        except ValueError:
            raise call.not_ours(first.key) from None
        if not first.lease:
            raise call.error(
                f"the lock's key {first.key!r} is attached to no lease of etcd, so nobody would "
                "ever be granted it: it was not written by a lock service; look at the key and "
                "delete it"
            )
        token = call.token_of(first.created, offset)
        left = ttl if call.at < self.deadline else (yield from call.left_of(first.lease, ttl))
        return Held(left, str(token), label, waited)

    def leave(self) -> Steps[None]:
        """Leave nothing behind, as nothing is wanted any more."""
        yield from self.call.revoke(*[self.waiting] * self.maybe_queued, self.lease)
        self.maybe_kept = self.maybe_queued = False

    def clean_up(self) -> Steps[None]:
        """Release what we may have acquired without knowing it; the ttl is the backstop."""
        leases = [self.waiting] * self.maybe_queued + [self.lease] * self.maybe_kept
        yield from self.call.revoke(*leases, see_through=True)

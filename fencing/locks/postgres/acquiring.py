"""Acquiring locks in PostgreSQL: what to ask, what the answers mean, and how one waits.

::

    in line ──turn──► asks ──held──► listens, asks for a place in the queue ──called──► asks
                       │ granted, and admitted in the same transaction            │
                       ▼                                                          ▼
                     lease ◄── admitted ◄── waits for open transactions ◄── granted, unadmitted

* Of the waiters of one process on one resource only the first asks; the others stand in *line*
  behind it. A fair waiter stands in no line: it has a place of its own in the database's queue.
* The queue is in the order of asking. A release calls its first; a lock that is free is granted to
  nobody else until that one counts as dead, ``QUEUE_SECONDS`` after it last asked.
* Nothing rests on being called. A waiter asks again when the holder's lease ends, and after
  ``REFRESH_SECONDS`` at the latest.
* A lease whose predecessor has a transaction open is granted without being admitted. A guard then
  admits it, as one of any lock service, and may evict who is in the way. Without a guard it is
  admitted here, within the caller's patience and the lease's trust.

Without I/O and without a clock.
"""

from __future__ import annotations

import json
import math
import random
from typing import TYPE_CHECKING

from fencing.errors import LockNotAcquiredError, StaleFenceError
from fencing.lease import trust_ends
from fencing.locks.asking import GRACE_SECONDS, NO_WAIT_SECONDS
from fencing.locks.outcome import Grant, Held, label_of, not_acquired
from fencing.locks.postgres.asking import (
    ACQUIRE,
    ACQUIRE_ALL,
    ADMIT,
    RELEASE,
    Call,
    Line,
    Listen,
    Signal,
    Wait,
    milliseconds,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.errors import LockServiceError
    from fencing.locks.outcome import Outcome
    from fencing.locks.postgres.asking import Reply, Steps
    from fencing.request import AcquireRequest

__all__ = ["QUEUE_SECONDS", "REFRESH_SECONDS", "acquire", "acquire_all", "give_up"]

REFRESH_SECONDS = 1.0
"""Longest time between two requests of a waiter, in seconds: how long a lost call costs."""

QUEUE_SECONDS = 2.5
"""How long a place in the queue is kept without being asked for again, in seconds."""

LISTEN_SECONDS = 1.0
"""How long a waiter waits for its process to listen before it asks without, in seconds."""

TURN_SECONDS = 0.5
"""How long an admission waits for open transactions at a time, in seconds.

Then it gives its connection to others, who may have a lease to renew; and the server, which does
not look whether a client that waits for a lock is still there, waits for nobody who is gone."""

TOO_LATE = 3
"""How often a lock may be granted too late before the ttl counts as too short."""

_AFTER_SECONDS = 0.001
"""So much is waited beyond the end of a lease, in seconds."""


def acquire(
    request: AcquireRequest, *, holder: str, started_at: float, guarded: bool, in_line: bool = False
) -> Steps[Outcome]:
    """Acquire a lock, waiting for it as long as the request says.

    Args:
        request: What the caller asks for.
        holder: The nonce of this acquisition.
        started_at: Now (:func:`fencing.clock.now`, seconds).
        guarded: Whether a guard admits what could not be admitted at once.
        in_line: Whether others of this process are before us.

    Returns:
        A grant that is trusted at the time of its answer, or who held the lock at the deadline.

    Raises:
        LockNotAcquiredError: Open transactions kept it from being admitted in time.
        LockServiceError: PostgreSQL is out of reach, or no token is left.
    """
    acquiring = _Acquiring(request, holder, started_at, guarded=guarded)
    try:
        return (yield from acquiring.go_on(in_line=in_line))
    except GeneratorExit:
        raise
    except BaseException:
        yield from acquiring.clean_up()
        raise


def give_up(holders: Sequence[tuple[str, str]], *, started_at: float) -> Steps[None]:
    """Release what may have been acquired: pairs of resource and holder."""
    yield from Call("", started_at, ends=started_at).clean_up(*holders)


class _Acquiring:
    """An acquisition on its way: what may be left of it in the database, and what it knows."""

    def __init__(
        self, request: AcquireRequest, holder: str, started_at: float, *, guarded: bool
    ) -> None:
        self.request = request
        self.holder = holder
        self.started_at = started_at
        self.guarded = guarded
        self.deadline = started_at + request.patience
        patience = request.patience or NO_WAIT_SECONDS
        self.call = Call(request.resource, started_at, ends=started_at + patience)
        if request.patience:
            self.call.attempts = math.inf
        self.queued = False
        self.maybe_ours = False
        self.too_late = 0

    def go_on(self, *, in_line: bool) -> Steps[Outcome]:
        call = self.call
        if in_line:
            signal: Signal = yield Line(max(0.0, self.deadline - call.at))
            call.at = signal.at
        waits = False
        while True:
            is_last = call.at >= self.deadline
            reply = yield from self.ask(is_last=is_last, waits=waits)
            state, token, left, owner = reply.rows[0]
            match state:
                case "granted" | "unadmitted":
                    grant = yield from self.granted(state, token, reply)
                    if grant is not None:
                        return grant
                    continue
                case "held" | "queued":
                    held = Held(
                        float(left or 0) / 1000,
                        token or "",
                        owner or ("" if state == "held" else "who has waited longer"),
                        call.at - self.started_at,
                    )
                case "exhausted":
                    raise call.exhausted()
                case _:
                    raise call.nonsense(reply.rows)
            # A request of which we never heard may still be under way, where one was repeated.
            self.maybe_ours = call.repeated
            if is_last:
                yield from self.clean_up()
                return held
            if not waits:
                waits = True
                signal = yield Listen(max(0.0, min(LISTEN_SECONDS, self.deadline - call.at)))
                call.at = signal.at
                continue  # for a place in the queue
            signal = yield Wait(_pause(held.left, self.deadline - call.at))
            call.at = signal.at

    def ask(self, *, is_last: bool, waits: bool) -> Steps[Reply]:
        queue_ms: int | None = None
        if is_last:
            queue_ms = 0 if self.queued else None
            self.queued = False
        elif waits:
            queue_ms = milliseconds(QUEUE_SECONDS)
            self.queued = True
        self.maybe_ours = True
        request = self.request
        return (
            yield from self.call.ask(
                ACQUIRE,
                resource=request.resource,
                holder=self.holder,
                owner=label_of(request),
                ttl_ms=milliseconds(request.ttl),
                floor=request.floor,
                queue_ms=queue_ms,
            )
        )

    def granted(self, state: str, token: str | None, reply: Reply) -> Steps[Grant | None]:
        call, ttl = self.call, self.request.ttl
        drawn = call.token_in(token)
        self.queued = False
        admitted_in = reply.database if state == "granted" else ""
        if state == "unadmitted" and not self.guarded:
            if not (yield from self.admit(drawn, reply)):
                return None
            admitted_in = reply.database
        if call.at < trust_ends(reply.asked_at, ttl):
            return Grant(drawn, reply.asked_at, repeated=call.repeated, admitted_in=admitted_in)
        self.too_late += 1
        if self.too_late == TOO_LATE or call.at >= self.deadline:
            raise self.granted_too_late(reply)
        # Given back, but not up: it is asked for again under the same holder.
        yield from call.ask(
            RELEASE, resource=self.request.resource, holder=self.holder, give_up=False
        )
        return None

    def granted_too_late(self, reply: Reply) -> LockServiceError:
        return too_late(self.call, self.request.ttl, reply)

    def admit(self, token: int, reply: Reply) -> Steps[bool]:
        """Admit a lease, waiting for transactions of its predecessors; whether that came about."""
        call, request = self.call, self.request
        end = min(self.deadline, trust_ends(reply.asked_at, request.ttl))
        while True:
            left = max(0.0, end - call.at)
            call.ends = max(call.ends, call.at + left + 3 * GRACE_SECONDS)
            try:
                yield from call.ask(
                    ADMIT,
                    longer=left,
                    resource=request.resource,
                    token=token,
                    holder=self.holder,
                    owner=label_of(request),
                    wait_ms=int(min(left, TURN_SECONDS) * 1000),
                )
            except StaleFenceError:
                return False  # the fence was raised meanwhile: another token is drawn
            except LockNotAcquiredError as error:
                yield from call.pause(0.0)  # tells the time
                if end - call.at < _AFTER_SECONDS:
                    error.waited = call.at - self.started_at
                    raise
            else:
                return True

    def clean_up(self) -> Steps[None]:
        if self.maybe_ours or self.queued:
            yield from self.call.clean_up((self.request.resource, self.holder))


def too_late(call: Call, ttl: float, reply: Reply) -> LockServiceError:
    """The error for a lock whose ttl had run out before we knew."""
    return call.error(
        f"the lock was granted, but a ttl of {ttl} s had run out before the answer came "
        f"({call.at - reply.asked_at:.3f} s): ask for a longer ttl, or look why PostgreSQL "
        "answers so slowly"
    )


def _pause(left: float, until_deadline: float) -> float:
    # A little at random, so that waiters who began together do not go on asking together.
    refresh = REFRESH_SECONDS * random.uniform(0.8, 1.0)  # noqa: S311 - no secret
    return max(0.0, min(refresh, left + _AFTER_SECONDS, until_deadline))


_NAMED = 3
"""How many resources a message names."""


def acquire_all(
    requests: Sequence[AcquireRequest], *, holders: Sequence[str], started_at: float
) -> Steps[list[Grant] | LockNotAcquiredError]:
    """Acquire all of them in one transaction, or none if one is held; at once.

    Args:
        requests: At least one; they differ in resource and floor only.
        holders: The nonces of the acquisitions.
        started_at: Now (:func:`fencing.clock.now`, seconds).

    Returns:
        A grant for each, trusted at the time of its answer; or the error that says which is held.

    Raises:
        LockServiceError: PostgreSQL is out of reach, or no token is left.
    """
    first = requests[0]
    by_name = {request.resource: request for request in requests}
    ends = started_at + (first.patience or NO_WAIT_SECONDS)
    call = Call(first.resource, started_at, ends=ends)
    more = f" and {len(requests) - _NAMED} more" if len(requests) > _NAMED else ""
    call.about = f", resources {', '.join(repr(name) for name in list(by_name)[:_NAMED])}{more}"
    pairs = [(request.resource, holder) for request, holder in zip(requests, holders, strict=True)]
    wanted = json.dumps(
        [
            {"resource": request.resource, "holder": holder, "floor": request.floor}
            for request, holder in zip(requests, holders, strict=True)
        ]
    )
    maybe_ours = False
    try:
        maybe_ours = True
        reply = yield from call.ask(
            ACQUIRE_ALL, wanted=wanted, owner=label_of(first), ttl_ms=milliseconds(first.ttl)
        )
        rows = {row[0] or "": row for row in reply.rows}
        if set(rows) - set(by_name) or not rows:
            raise call.nonsense(reply.rows)  # noqa: TRY301 - to be cleaned up after, too
        refused = _refused(reply, by_name, waited=call.at - started_at)
        if refused is not None:
            # An earlier request, of which we never heard, may still be under way.
            maybe_ours = call.repeated
            if maybe_ours:
                yield from call.clean_up(*pairs)
            return refused
        if len(rows) != len(requests):
            raise call.nonsense(reply.rows)  # noqa: TRY301 - as above
        if call.at >= trust_ends(reply.asked_at, first.ttl):
            raise too_late(call, first.ttl, reply)  # noqa: TRY301 - as above
        grants = []
        for request in requests:
            _, state, token, *_ = rows[request.resource]
            admitted_in = reply.database if state == "granted" else ""
            grants.append(
                Grant(
                    call.token_in(token),
                    reply.asked_at,
                    repeated=call.repeated,
                    admitted_in=admitted_in,
                )
            )
        return grants  # noqa: TRY300 - what is wrong with the answer is cleaned up after
    except GeneratorExit:
        raise
    except BaseException:
        if maybe_ours:
            yield from call.clean_up(*pairs)
        raise


def _refused(
    reply: Reply, by_name: dict[str, AcquireRequest], *, waited: float
) -> LockNotAcquiredError | None:
    """The error for the one that was not to be had, if there is one."""
    name, state, token, left, owner, pids = reply.rows[-1]
    if state == "blocked":
        return _blocked(name or "", pids or "", waited)
    if state in ("held", "queued"):
        held = Held(float(left or 0) / 1000, token or "", owner or "", waited)
        return not_acquired(by_name[name or ""], held)
    return None


def _blocked(resource: str, pids: str, waited: float) -> LockNotAcquiredError:
    blocked_by = [int(pid) for pid in pids.split()]
    return LockNotAcquiredError(
        f"{resource!r} was not acquired: transactions under an earlier lease are still open, of "
        f"PostgreSQL backends {', '.join(map(str, blocked_by)) or 'unknown'}; wait longer "
        "(blocking_timeout), or let them end",
        resource=resource,
        waited=waited,
        blocked_by=blocked_by,
    )

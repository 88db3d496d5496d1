"""What to ask Redis, what its answers mean, and what to do when none comes.

Everything here is a generator without I/O and without a clock. It yields the next step, *ask* or
*wait* for instance, and the shell in :mod:`fencing.locks.performing` performs it and sends back
what came of it, together with the time. An exception in performing is thrown back in, so that it is
here that clean-up is decided, once for sync and async.

The rules:

* *Trust* counts from when the request that was answered was sent, never from the answer. A lease
  whose answer arrives after its trust has ended is given back, not returned.
* A request whose outcome is unknown (no answer, cancelled, interrupted) may have taken the lock.
  It is repeated under the same holder, which the script recognises; when we give up instead, the
  lock is released by holder, without knowing its token.
* The *deadline* is absolute: nothing that happens on the way restarts it. A caller who waits for
  a lock gets one last attempt at the deadline itself. How he waits is told in
  :mod:`fencing.locks.waiting`.
* *Trouble* with Redis is not the lock being held: it is a LockServiceError, after at most
  ``ATTEMPTS`` attempts and ``TROUBLE_SECONDS`` without an answer, and by the deadline if there is
  one. A deadline that leaves no time for a round trip is stretched to ``GRACE_SECONDS`` for the
  attempt, and once more for the clean-up.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencing.errors import (
    FencingError,
    LeaseExpiredError,
    LeaseLostError,
    LockNotAcquiredError,
    LockServiceError,
)
from fencing.lease import trust_ends
from fencing.locks.asking import Call, Trouble
from fencing.locks.durability import PLAIN, Durability
from fencing.locks.scripts import ACQUIRE, RAISE, RELEASE, RENEW
from fencing.locks.waiting import Belief, pause, record_of

if TYPE_CHECKING:
    from fencing.lease import BaseLease
    from fencing.locks.asking import Reply, Steps
    from fencing.request import AcquireRequest

__all__ = [
    "Grant", "Held", "acquire", "give_up", "held_of", "judge_renewal", "label_of", "milliseconds",
    "not_acquired", "raise_token", "release", "renew", "renewal_of",
]  # fmt: skip

NO_WAIT_SECONDS = 2.0
"""How long a call that does not wait for the lock may take on Redis, retries included, in s."""

RELEASE_SECONDS = 2.0
"""How long a release may take, retries included, in seconds."""

TOO_LATE = 3
"""How often a lock may be granted too late before the ttl counts as too short."""


@dataclass(frozen=True, slots=True)
class Grant:
    """The lock is ours.

    Attributes:
        token: The token.
        asked_at: When the request was sent that it counts from, in seconds of
            :func:`fencing.clock.now`.
        handed_for: For how long it was handed over, in seconds, until it is renewed; ``None``: it
            was asked for, and lasts its ttl.
    """

    token: int
    asked_at: float
    handed_for: float | None = None


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


def acquire(
    request: AcquireRequest, *, holder: str, started_at: float, durability: Durability = PLAIN
) -> Steps[Grant | Held]:
    """Acquire a lock, waiting for it as long as the request says.

    Args:
        request: What the caller asks for.
        holder: The nonce of this acquisition.
        started_at: Now (:func:`fencing.clock.now`, seconds).
        durability: What the service asks Redis to keep.

    Returns:
        A grant that is trusted at the time of its answer, or who held the lock at the deadline.

    Raises:
        LockServiceError: Redis is out of reach, or what it keeps cannot be a lock of ours.
    """
    acquiring = _Acquiring(request, holder, started_at, durability)
    try:
        return (yield from acquiring.go_on())
    except GeneratorExit:
        raise
    except BaseException:
        yield from acquiring.clean_up()
        raise


def give_up(request: AcquireRequest, holder: str, *, started_at: float) -> Steps[None]:
    """Release what may have been acquired, whatever has become of the acquisition's own steps."""
    yield from Call(request.resource, started_at, ends=started_at).clean_up(holder)


class _Acquiring:
    """An acquisition on its way: what may be left of it in Redis, and what it knows."""

    def __init__(
        self, request: AcquireRequest, holder: str, started_at: float, durability: Durability
    ) -> None:
        self.request = request
        self.holder = holder
        self.started_at = started_at
        self.deadline = started_at + request.patience
        patience = request.patience or NO_WAIT_SECONDS
        self.call = Call(
            request.resource, started_at, ends=started_at + patience, durability=durability
        )
        self.wishes = milliseconds(request.ttl), str(request.floor), label_of(request)
        self.nonce = ""
        self.record: tuple[str, ...] = ()
        self.maybe_ours = False
        self.too_late = 0
        self.belief = Belief(request.ttl)
        # Under a guard nothing is gained that admission would not take longer for; and whoever
        # waits for replicas must ask.
        self.believes = not (durability.guarded or durability.replicas)

    def go_on(self) -> Steps[Grant | Held]:
        call, in_line = self.call, not self.request.fair
        if self.request.patience > 0:
            self.nonce = yield from call.enter(self.holder, in_line=in_line, until=self.deadline)
        while True:
            is_last = call.at >= self.deadline
            reply, facts = yield from self.ask(is_last=is_last)
            if self.maybe_ours:
                token = call.token_in(facts)
                call.require_acknowledged(reply, "the lock, so it was given back")
                if call.at < trust_ends(reply.asked_at, self.request.ttl):
                    return Grant(token, reply.asked_at)
                yield from self.give_back_too_late(reply)
                continue
            held = held_of(call, reply, facts, waited=call.at - self.started_at)
            if is_last:
                return held
            self.belief.note_held(held.token, reply.asked_at)
            token = yield from self.wait(held)
            if token and self.believes and self.belief.allows(token, call.at):
                return Grant(token, self.belief.asked_at, self.belief.seconds)
            yield from self.listen_on()

    def ask(self, *, is_last: bool) -> Steps[tuple[Reply, list[str]]]:
        """Ask for the lock, and register as a waiter if we listen; the last time, to be let go."""
        if self.nonce:
            ttl, floor, label = self.wishes
            self.record = (record_of(self.holder, ttl, floor, self.nonce, label),)
        waits = self.record if is_last or self.nonce else ()
        if waits and is_last:
            waits = (*waits, "last")
        self.maybe_ours = True
        asked = (self.holder, *self.wishes, self.call.durability.keep, *waits)
        answer = yield from self.call.ask(ACQUIRE, *asked)
        self.maybe_ours = answer[0].answer[0] == "granted"
        return answer

    def give_back_too_late(self, reply: Reply) -> Steps[None]:
        self.too_late += 1
        if self.too_late == TOO_LATE or self.call.at >= self.deadline:
            raise self.call.error(
                f"the lock was granted, but a ttl of {self.request.ttl} s had run out before the "
                f"answer came ({self.call.at - reply.asked_at:.3f} s): ask for a longer ttl, or "
                "look why Redis answers so slowly"
            )
        yield from self.call.clean_up(self.holder)

    def wait(self, held: Held) -> Steps[int]:
        """Wait until it is worth asking again; return the token that it was handed, or 0.

        Who could not register asks again as soon as he can.
        """
        call = self.call
        ask_at = call.at + pause(held.left, self.deadline - call.at)
        if not self.nonce:
            self.nonce = yield from call.listen(until=ask_at)
            if self.nonce:
                return 0
        return (yield from call.wait(ask_at - call.at))

    def listen_on(self) -> Steps[None]:
        """Listen, where the channel was lost or the resource has moved to another node."""
        self.nonce = yield from self.call.listen(until=self.deadline)

    def clean_up(self) -> Steps[None]:
        if self.maybe_ours or self.record:
            yield from self.call.clean_up(self.holder, *self.record)


def held_of(call: Call, reply: Reply, facts: list[str], *, waited: float) -> Held:
    """Who holds the lock, as an answer other than "granted" says; ``waited`` in seconds.

    Raises:
        LockServiceError: The keys are not a lock's of ours, or the counter is exhausted.
    """
    match reply.answer[0], facts:
        case "held", [left, token, owner]:
            return Held(int(left) / 1000, token, owner, waited)
        case "endless", _:
            raise call.error(
                "the lock's key has no expiry, so nobody would ever be granted it: it was not "
                "written by a lock service, or somebody ran PERSIST on it; look at the key and "
                "delete it"
            )
        case found, _:
            raise call.unusable(found, reply)


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


def renew(
    lease: BaseLease, ttl: float, *, started_at: float, durability: Durability = PLAIN
) -> Steps[None]:
    """Extend a lease to ``ttl`` seconds from the moment the answered request was sent.

    Raises:
        LeaseLostError: It is not ours any more; it is marked as lost.
        LeaseExpiredError: Redis has extended it, but answered after that, too, had run out.
        LockServiceError: Redis could not be asked; the lease is as it was.
    """
    call = Call(lease.resource, started_at, ends=lease.trusted_until, durability=durability)
    token = lease.token
    reply, _ = yield from call.ask(RENEW, *renewal_of(lease, ttl, durability))
    _judge_renewal(call, lease, ttl, reply, token)


def renewal_of(lease: BaseLease, ttl: float, durability: Durability = PLAIN) -> tuple[str, ...]:
    """The arguments of the script that renews a lease."""
    return lease.holder, str(lease.token), milliseconds(ttl), durability.keep


def judge_renewal(
    lease: BaseLease,
    ttl: float,
    came: Reply | Trouble,
    durability: Durability = PLAIN,
    *,
    token: int | None = None,
) -> FencingError | None:
    """What has come of a renewal that travelled with others; noted in the lease.

    Args:
        lease: The lease.
        ttl: What it was renewed with, in seconds.
        came: The answer to it, or why there is none.
        durability: What the service asks Redis to keep.
        token: The one it was asked with; default: the lease's.

    Returns:
        The error that :func:`renew` would raise; ``None``: it is renewed.
    """
    call = Call(lease.resource, came.at, ends=lease.trusted_until, durability=durability)
    if isinstance(came, Trouble):
        return call.error(came.help)
    try:
        call.check_echo(came, lease.holder)
        under = lease.token if token is None else token
        _judge_renewal(call, lease, ttl, came, under, in_background=True)
    except FencingError as error:
        return error
    return None


def _judge_renewal(
    call: Call,
    lease: BaseLease,
    ttl: float,
    reply: Reply,
    token: int,
    *,
    in_background: bool = False,
) -> None:
    match reply.answer[0]:
        case "renewed":
            call.require_acknowledged(reply, "the renewal, so the lease ends when it would have")
            # Redis never shortens, so whichever of two answers is noted last, it is not later
            # than what Redis keeps.
            lease.note_renewed(asked_at=reply.asked_at, ttl=ttl, in_background=in_background)
            if call.at >= lease.trusted_until:
                raise LeaseExpiredError(
                    f"the lease on {lease.resource!r} (token {lease.token}) was extended by "
                    f"{ttl} s, but that had run out before the answer came; acquire it again and "
                    "repeat the work from its first read",
                    resource=lease.resource,
                    token=lease.token,
                )
        case "other" if lease.raising or lease.token != token:
            # Ours under another token, perhaps; to be asked again when that is known.
            raise call.error("the lease was given another token meanwhile, and was not renewed")
        case "absent" | "other" as found:
            raise _lost(lease, found)
        case _:
            raise call.nonsense(reply)


def release(lease: BaseLease, *, started_at: float) -> Steps[None]:
    """Give a lease back. Whatever comes of it, nothing can be done under the lease any more.

    Raises:
        LeaseLostError: It had been lost before; it is marked as lost.
        LockServiceError: Redis could not be told; the lock ends by its ttl.
    """
    call = Call(lease.resource, started_at, ends=started_at + RELEASE_SECONDS)
    lease.note_releasing()
    try:
        reply, _ = yield from call.ask(RELEASE, lease.holder)
    except GeneratorExit:
        raise
    except LockServiceError:
        lease.note_released()
        raise
    except BaseException:
        lease.note_released()
        yield from call.clean_up(lease.holder)
        raise
    match reply.answer[0]:
        case "released":
            lease.note_released()
        case "absent" if started_at < lease.trusted_until:
            # Our own first request, whose answer was lost, has released it; or Redis has lost
            # everything it had. Either way nothing of it is left, and while it was trusted
            # nobody can say that it was ever another's.
            lease.note_released()
        case "other" if started_at < lease.trusted_until and call.repeated:
            # Likewise, and somebody was waiting for it: he has it already.
            lease.note_released()
        case "absent" | "other" as found:
            raise _lost(lease, found, at_release=True)
        case _:
            lease.note_released()
            raise call.nonsense(reply)


def raise_token(
    lease: BaseLease, floor: int, *, started_at: float, durability: Durability = PLAIN
) -> Steps[None]:
    """Give a lease that is still ours, and was never admitted, a token above ``floor``.

    Raises:
        FencingUsageError: The lease has been admitted under its token; nothing was sent.
        LeaseLostError: It is not ours any more; it is marked as lost.
        LockServiceError: Redis could not be asked, or its counter cannot go that high.
    """
    lease.note_token(lease.token)  # changes nothing, and refuses an admitted lease
    call = Call(lease.resource, started_at, ends=lease.trusted_until, durability=durability)
    lease.raising = True  # renewals that are on their way carry the old one
    try:
        reply, facts = yield from call.ask(RAISE, lease.holder, str(floor))
        match reply.answer[0]:
            case "raised":
                token = call.token_in(facts)
                if token <= floor:
                    raise call.nonsense(reply)
                call.require_acknowledged(reply, "the new token")
                lease.note_token(token)
            case "absent" | "other" as found:
                raise _lost(lease, found)
            case found:
                raise call.unusable(found, reply)
    finally:
        lease.raising = False


def _lost(lease: BaseLease, found: str, *, at_release: bool = False) -> LeaseLostError:
    lease.note_lost(at_release=at_release)
    now_what = "another holder has the lock" if found == "other" else "nobody holds the lock"
    return LeaseLostError(
        f"the lease on {lease.resource!r} (token {lease.token}) is not ours any more: "
        f"{now_what}; acquire it again and repeat the work from its first read",
        resource=lease.resource,
        token=lease.token,
    )


def milliseconds(seconds: float) -> str:
    """A ttl as an argument of a script."""
    # Rounded up: the key must not expire before the trust that is counted from the same ttl.
    return str(math.ceil(seconds * 1000))


_LABEL_CHARACTERS = 200


def label_of(request: AcquireRequest) -> str:
    """The owner, for people who look at the key, and for the message to those who wait."""
    return request.owner_label[:_LABEL_CHARACTERS]

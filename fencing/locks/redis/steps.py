"""What to ask Redis, what its answers mean, and what to do when none comes.

Everything here is a generator without I/O and without a clock. It yields the next step, *ask* or
*wait* for instance, and the shell in :mod:`fencing.locks.redis.performing` performs it and sends
back what came of it, together with the time. An exception in performing is thrown back in, so that
it is here that clean-up is decided, once for sync and async.

The rules are those of :mod:`fencing.locks.asking`; how one waits is told in
:mod:`fencing.locks.redis.waiting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.errors import FencingError
from fencing.locks.asking import RELEASE_SECONDS, Trouble
from fencing.locks.judging import giving_back, is_accounted_for, lost, note_renewed, whose_now
from fencing.locks.redis.asking import UNKNOWN, Call, Came
from fencing.locks.redis.durability import PLAIN, Durability
from fencing.locks.redis.scripts import (
    RAISE,
    RELEASE,
    RELEASE_UNWANTED,
    RENEW,
    milliseconds,
)

if TYPE_CHECKING:
    from fencing.lease import BaseLease
    from fencing.locks.redis.asking import Ask, Reply, Steps

__all__ = [
    "Releasing", "judge_release", "judge_renewal", "raise_token", "release_of", "renew",
    "renewal_of",
]  # fmt: skip


def renew(
    lease: BaseLease, ttl: float, *, started_at: float, durability: Durability = PLAIN
) -> Steps[None]:
    """Extend a lease to ``ttl`` seconds from the moment the answered request was sent.

    Raises:
        LeaseLostError: It is not ours any more; it is marked as lost.
        LeaseExpiredError: Redis has extended it, but answered after that, too, had run out.
        LockServiceError: Redis could not be asked; the lease is as it was.
    """
    call = Call(lease.resource, started_at, ends=lease.trusted_until)
    call.durability = durability
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
    call = Call(lease.resource, came.at, ends=lease.trusted_until)
    call.durability = durability
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
            note_renewed(
                lease, ttl, asked_at=reply.asked_at, at=call.at, in_background=in_background
            )
        case "other" if lease.raising or lease.token != token:
            # Ours under another token, perhaps; to be asked again when that is known.
            raise call.error("the lease was given another token meanwhile, and was not renewed")
        case "absent" | "other" as found:
            raise lost(lease, whose_now(taken=found == "other"))
        case _:
            raise call.nonsense(reply)


class Releasing:
    """A lease being given back. Whatever comes of it, nothing can be done under it any more.

    It returns why Redis could not hand it over to who waits, as it says, and nothing if there was
    no trouble; it raises LeaseLostError where it had been lost before (it is marked as lost), and
    LockServiceError where Redis could not be told, so that the lock ends by its ttl. See
    `fencing.locks.performing.Prompt`.

    Args:
        lease: The lease.
        started_at: When it was first sent (:func:`fencing.clock.now`, seconds).
        repeated: Whether it was sent before.
        wanted: Whether somebody is likely to wait for the lock.

    Attributes:
        handed: Whether it was handed over to somebody who waited for it.
    """

    handed = False

    def __init__(
        self,
        lease: BaseLease,
        *,
        started_at: float,
        repeated: bool = False,
        wanted: bool = True,
    ) -> None:
        self._lease = lease
        self._script = RELEASE if wanted else RELEASE_UNWANTED
        self._started_at = started_at
        self._call = Call(lease.resource, started_at, ends=started_at + RELEASE_SECONDS)
        self._call.repeated = repeated

    def begin(self) -> Ask:
        """Ask for the first time."""
        self._lease.note_releasing()
        return self._call.request(self._script, release_of(self._lease))

    def settle(self, reply: Reply) -> str | None:
        """What Redis says of handing it over, where it was plainly released."""
        if reply.answer[:2] != ["released", self._lease.holder]:
            return None
        self._lease.note_released()
        self.handed = reply.answer[3:] == ["handed"]
        return "".join(reply.answer[2:3])

    def go_on(self, came: Came = None) -> Steps[str]:
        """Give it back, after what has come of asking for the first time, if that was done."""
        call, lease = self._call, self._lease
        asking = self._asking(came)
        came = None  # its traceback would hold this frame, which holds it
        reply = yield from giving_back(lease, asking, lambda: call.clean_up(lease.holder))
        self.handed = reply.answer[3:] == ["handed"]
        return _judge_release(call, lease, reply, reply.answer[2:], self._started_at)

    def _asking(self, came: Came) -> Steps[Reply]:
        asking = self._call.answered(RELEASE, release_of(self._lease), came)
        came = None  # likewise
        reply = yield from asking
        self._call.check_echo(reply, self._lease.holder)
        return reply


def judge_release(lease: BaseLease, came: Reply, *, started_at: float) -> str | FencingError:
    """What has come of a release that travelled with others; noted in the lease.

    Returns:
        What :class:`Releasing` returns, or the error that it would raise.
    """
    call = Call(lease.resource, came.at, ends=came.at)
    try:
        call.check_echo(came, lease.holder)
        return _judge_release(call, lease, came, came.answer[2:], started_at)
    except FencingError as error:
        lease.note_released()
        return error


def _judge_release(
    call: Call, lease: BaseLease, reply: Reply, facts: list[str], started_at: float
) -> str:
    match reply.answer[0]:
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
            raise call.nonsense(reply)
    return facts[0] if facts else ""


def release_of(lease: BaseLease) -> tuple[str, ...]:
    """The arguments of the script that releases a lease."""
    return (lease.holder, UNKNOWN) if lease.asked_again else (lease.holder,)


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
    call = Call(lease.resource, started_at, ends=lease.trusted_until)
    call.durability = durability
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
                raise lost(lease, whose_now(taken=found == "other"))
            case found:
                raise call.unusable(found, reply)
    finally:
        lease.raising = False

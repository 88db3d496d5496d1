"""Acquiring one lock: what to ask, what the answers mean, and when to believe what one is told.

Without I/O and without a clock, like :mod:`fencing.locks.redis.steps`. How one waits is told in
:mod:`fencing.locks.redis.waiting`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from fencing.lease import trust_ends
from fencing.locks.asking import NO_WAIT_SECONDS
from fencing.locks.outcome import MAX_LABEL, Grant, Held
from fencing.locks.redis.asking import Call
from fencing.locks.redis.durability import PLAIN, Durability
from fencing.locks.redis.scripts import ACQUIRE, milliseconds
from fencing.locks.redis.waiting import Belief, pause, record_of
from fencing.request import count_in

if TYPE_CHECKING:
    from fencing.locks.outcome import Outcome
    from fencing.locks.redis.asking import Ask, Came, Reply, Steps
    from fencing.request import AcquireRequest

__all__ = ["Acquiring", "give_up", "held_of"]

_FACTS = 3
"""What "held" is told with; whoever waits is told his place besides."""

TOO_LATE = 3
"""How often a lock may be granted too late before the ttl counts as too short."""


def give_up(request: AcquireRequest, holder: str, *, started_at: float) -> Steps[None]:
    """Release what may have been acquired, whatever has become of the acquisition's own steps."""
    yield from Call(request.resource, started_at, ends=started_at).clean_up(holder)


class Acquiring:
    """An acquisition on its way, which waits for the lock as long as the request says.

    It returns a grant that is trusted at the time of its answer, or who held the lock at the
    deadline, and raises LockServiceError where Redis is out of reach, or what it keeps cannot be a
    lock of ours. See `fencing.locks.performing.Prompt`.

    Args:
        request: What the caller asks for.
        nonce: Of the channel that this process listens to, for those who wait; empty if it does
            not; ``None``: others of this process are before us, and it goes on without beginning.
        holder: The nonce of this acquisition.
        started_at: Now (:func:`fencing.clock.now`, seconds).
        durability: What the service asks Redis to keep.
    """

    # What may be left of it in Redis, and what it knows: nothing, as long as it is not asked again.
    record: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    belief: Belief | None = None
    asked: tuple[str, ...] = ()
    is_last = False
    maybe_ours = False
    too_late = 0

    def __init__(
        self,
        request: AcquireRequest,
        nonce: str | None = "",
        *,
        holder: str,
        started_at: float,
        durability: Durability = PLAIN,
    ) -> None:
        self.request = request
        self.nonce = nonce
        self.holder = holder
        self.started_at = started_at
        patience = request.patience
        self.deadline = started_at + patience
        ends = started_at + (patience or NO_WAIT_SECONDS)
        self.call = Call(request.resource, started_at, ends=ends)
        self.call.durability = durability
        if patience:
            self.call.attempts = math.inf
        label = request.owner_label[:MAX_LABEL]
        self.wishes = milliseconds(request.ttl), str(request.floor), label
        # Whether a message is not enough: replicas are waited for by asking only; and under a
        # guard, where admission takes longer than to ask, a lease is to last from the beginning.
        self.must_ask = durability.guarded or durability.replicas > 0

    def begin(self) -> Ask:
        """Ask for the first time."""
        return self.call.request(ACQUIRE, self._next_arguments())

    def settle(self, reply: Reply) -> Grant | None:
        """The grant, if the lock was granted, and in time.

        Raises:
            LockServiceError: That was no answer to what was asked, or not enough replicas have it.
        """
        call = self.call
        call.at = reply.at
        if reply.answer[:2] != ["granted", self.holder]:
            call.check_echo(reply, self.holder)
            self.maybe_ours = False
            return None
        token = call.token_in(reply.answer[2:])
        if call.durability.replicas:
            call.require_acknowledged(reply, "the lock, so it was given back")
        if call.at >= trust_ends(reply.asked_at, self.request.ttl):
            return None
        return Grant(token, reply.asked_at, repeated=call.repeated)

    def go_on(self, came: Came = None) -> Steps[Outcome]:
        """Acquire the lock, after what has come of asking for the first time, if that was done."""
        steps = self._until_over(came)
        del came
        try:
            return (yield from steps)
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._clean_up()
            raise

    def _until_over(self, came: Came) -> Steps[Outcome]:
        call = self.call
        if self.nonce is None:
            self.nonce = yield from call.stand_in_line(until=self.deadline)
        while True:
            arguments = self._next_arguments() if came is None else self.asked
            steps, came = call.answered(ACQUIRE, arguments, came), None
            reply = yield from steps
            grant = self.settle(reply)
            if self.maybe_ours and grant is None:
                yield from self._give_back_too_late(reply)
            elif grant is None:
                facts = reply.answer[2:]
                # The first one that it was given: nobody who has asked since is before it.
                self.place = self.place or tuple(facts[_FACTS:])
                held = held_of(call, reply, facts[:_FACTS], waited=call.at - self.started_at)
                if self.is_last:
                    if call.repeated:
                        yield from self._clean_up()
                    return held
                grant = yield from self._wait(held, reply.asked_at)
            if grant is not None:
                return grant

    def _next_arguments(self) -> tuple[str, ...]:
        """What to ask with: as a waiter if we listen, and the last time to be let go."""
        asked: tuple[str, ...] = (self.holder, *self.wishes, self.call.durability.keep)
        self.is_last = self.call.at >= self.deadline
        if self.is_last:
            if self.record:
                asked = (*asked, *self.record, "last")
        elif self.nonce:
            ttl, floor, label = self.wishes
            self.record = (record_of(self.holder, ttl, floor, self.nonce, label),)
            place = ("", *self.place) if self.place else ()
            asked = (*asked, *self.record, *place)
        self.asked = asked
        self.maybe_ours = True
        return asked

    def _give_back_too_late(self, reply: Reply) -> Steps[None]:
        self.too_late += 1
        if self.too_late == TOO_LATE or self.call.at >= self.deadline:
            raise self.call.error(
                f"the lock was granted, but a ttl of {self.request.ttl} s had run out before the "
                f"answer came ({self.call.at - reply.asked_at:.3f} s): ask for a longer ttl, or "
                "look why Redis answers so slowly"
            )
        yield from self.call.clean_up(self.holder, known=True)

    def _wait(self, held: Held, asked_at: float) -> Steps[Grant | None]:
        """Wait until the lock is handed to us, or it is worth asking again.

        Who could not register asks again as soon as he can.
        """
        call = self.call
        ask_at = call.at + pause(held.left, self.deadline - call.at)
        if self.belief is None:
            self.belief = Belief(self.request.ttl)
        self.belief.note_held(held.token, asked_at)
        if not self.nonce:
            self.nonce = yield from call.listen(until=ask_at)
            if self.nonce:
                return None
        token = yield from call.wait(ask_at - call.at)
        if token and not self.must_ask and self.belief.allows(token, call.at):
            return Grant(token, asked_at, self.belief.seconds, call.repeated)
        # The channel may have been lost, or the resource have moved to another node.
        self.nonce = yield from call.listen(until=self.deadline)
        return None

    def _clean_up(self) -> Steps[None]:
        if self.maybe_ours or self.record or self.call.repeated:
            yield from self.call.clean_up(self.holder, *self.record)


def held_of(call: Call, reply: Reply, facts: list[str], *, waited: float) -> Held:
    """Who holds the lock, as an answer other than "granted" says; ``waited`` in seconds.

    Raises:
        LockServiceError: The keys are not a lock's of ours, or the counter is exhausted.
    """
    match reply.answer[0], facts:
        case "held", [left, token, owner]:
            return Held(int(left) / 1000, token if count_in(token) else "", owner, waited)
        case "endless", _:
            raise call.error(
                "the lock's key has no expiry, so nobody would ever be granted it: it was not "
                "written by a lock service, or somebody ran PERSIST on it; look at the key and "
                "delete it"
            )
        case found, _:
            raise call.unusable(found, reply)

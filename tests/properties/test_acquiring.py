"""An acquisition from Redis, whatever Redis does: the core is played to, without a server."""

from __future__ import annotations

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fencing.errors import LockServiceError
from fencing.lease import trust_ends
from fencing.locks.asking import GRACE_SECONDS, NO_WAIT_SECONDS, Pause
from fencing.locks.outcome import Grant, Held
from fencing.locks.redis.asking import Ask, Wait
from fencing.locks.redis.scripts import ACQUIRE, RELEASE
from tests.support.play import play_acquire


class World:
    """Draws what happens next, and notes what was asked."""

    def __init__(self, data: st.DataObject, patience: float | None, *, listens: bool) -> None:
        self.data = data
        self.ttl = data.draw(st.sampled_from([0.05, 1.0, 10.0]))
        wishes: dict[str, Any] = {"ttl": self.ttl}
        if patience == 0:
            wishes["blocking"] = False
        else:
            wishes["blocking_timeout"] = patience
        self.play = play_acquire(0.0, nonce="ab" * 8 if listens else "", listens=listens, **wishes)
        self.deadline = NO_WAIT_SECONDS if patience == 0 else patience
        self.asked: list[str] = []
        self.asked_at_the_deadline = 0
        self.may_hold = False

    def go_on(self, events: int) -> BaseException | None:
        """Let things happen until it ends; after so many, what ends it."""
        try:
            while self.play.step is not None:
                self.one_step(ends=events <= 0)
                events -= 1
        except (LockServiceError, KeyboardInterrupt) as error:
            return error
        return None

    def one_step(self, *, ends: bool) -> None:
        step = self.play.step
        if isinstance(step, Ask):
            self.one_answer(step, ends=ends)
        elif isinstance(step, Wait) and self.data.draw(st.integers(0, 4)) == 0:
            self.play.tell(self.data.draw(st.sampled_from([0, 5, 6, 7, 8, 9])))
        else:
            assert isinstance(step, Pause | Wait)
            assert step.seconds >= 0
            self.play.wait()

    def one_answer(self, ask: Ask, *, ends: bool) -> None:
        self.asked.append(ask.script.name)
        assert ask.within >= GRACE_SECONDS
        after = self.data.draw(st.sampled_from([0.0, 0.001, 0.2, 1.0])) * ask.within
        what = (
            "granted"
            if ends
            else self.data.draw(
                st.sampled_from(
                    ["granted", "held", "held", "held", "lost", "broken", "interrupted"]
                )
            )
        )
        if ask.script is RELEASE:
            self.may_hold = what in {"lost", "broken", "interrupted"} and self.may_hold
            if what in {"lost", "broken"}:
                self.play.fail(passing=what == "lost", after=ask.within)
            else:
                self.may_hold = False
                self.play.answer("released", after=after)
            return
        assert ask.script is ACQUIRE
        # One last attempt, and no second one.
        self.asked_at_the_deadline += self.play.at >= self.deadline
        assert self.asked_at_the_deadline <= 1
        match what:
            case "granted":
                self.may_hold = True
                self.play.answer("granted", 7, after=after)
            case "held":
                left = self.data.draw(st.sampled_from([1, 500, 30_000]))
                self.may_hold = False
                self.play.answer("held", left, 6, "another", after=after)
            case "lost" | "broken":
                self.may_hold = True
                self.play.fail(passing=what == "lost", after=ask.within)
            case "interrupted":
                self.may_hold = True
                self.play.throw(KeyboardInterrupt())


patiences = st.sampled_from([0, 0.01, 0.3, 1.0, 5.0, 60.0])


@given(st.data(), patiences, st.booleans(), st.integers(0, 30))
def test_it_keeps_its_rules(data, patience, listens, events):
    world = World(data, patience, listens=listens)
    error = world.go_on(events)
    play = world.play
    if error is None:
        assert isinstance(play.result, Grant | Held)
    if isinstance(play.result, Grant) and error is None:
        grant = play.result
        seconds = world.ttl if grant.handed_for is None else grant.handed_for
        assert grant.asked_at <= play.at < trust_ends(grant.asked_at, seconds)
    elif error is not None and "acquire" in world.asked and world.may_hold:
        # Nothing more could be done than to ask for it.
        assert world.asked[-1] == "release"
    # What may go beyond the deadline: an attempt that began before it, the last
    # one, which begins at it, and the clean-up.
    longest = world.deadline + 3 * GRACE_SECONDS
    assert play.at <= longest + 1e-6 or math.isclose(play.at, longest)


@given(st.data(), patiences, st.booleans())
def test_what_it_holds_and_does_not_return_is_given_back(data, patience, listens):
    """Where releases are answered, nothing is left behind."""
    world = World(data, patience, listens=listens)

    def one_answer(ask: Ask, *, ends: bool, inner: Any = world.one_answer) -> None:
        if ask.script is RELEASE:
            world.asked.append("release")
            world.may_hold = False
            world.play.answer("released")
        else:
            inner(ask, ends=ends)

    world.one_answer = one_answer
    error = world.go_on(20)
    if error is not None or not isinstance(world.play.result, Grant):
        assert not world.may_hold

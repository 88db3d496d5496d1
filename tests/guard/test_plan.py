"""The plan alone: which steps it asks for, and what it makes of each outcome. No I/O, no clock."""

from __future__ import annotations

from typing import Any

import pytest

from fencing import (
    FencingUsageError,
    Lease,
    LeaseExpiredError,
    LeaseLostError,
    LockNotAcquiredError,
    LockServiceError,
    StaleFenceError,
)
from fencing.clock import now
from fencing.core.plan import (
    Admit,
    AskMark,
    Evict,
    GiveBack,
    Lock,
    RaiseToken,
    Renew,
    acquire_admitted,
    admit_lease,
)
from fencing.core.slots import NoSlotError
from fencing.request import MAX_TOKEN, AcquireRequest
from tests.support.scripted import ScriptedLocks


class FakeDatabase:
    """A database without a connection, in which nothing was left open."""

    name = "fake"

    @property
    def presentations(self) -> FakeDatabase:
        return self

    def open_on(self, _resource: str) -> list[Any]:
        return []


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.time = now()

    def __call__(self) -> float:
        return self.time


FIRST, SECOND = FakeDatabase(), FakeDatabase()


def lease(token: int = 1, ttl: float = 10.0) -> Lease:
    return ScriptedLocks(token).acquire("x", ttl=ttl)


def stale(mark: int | None) -> StaleFenceError:
    return StaleFenceError(resource="x", token=1, current_token=mark)


def request(**arguments: Any) -> AcquireRequest:
    return AcquireRequest(resource="x", **{"ttl": 10.0, **arguments})


class Play:
    """Performs a plan by script: what each kind of step is to come to, in order."""

    def __init__(self, clock: Clock | None = None, **outcomes: list[Any]) -> None:
        self.clock = clock or Clock()
        self.outcomes = outcomes
        self.steps: list[Any] = []

    def run(self, plan) -> Any:
        send, failure = None, None
        while True:
            try:
                step = plan.throw(failure) if failure else plan.send(send)
            except StopIteration as end:
                return end.value
            self.steps.append(step)
            send, failure = None, None
            queue = self.outcomes.get(type(step).__name__, [])
            outcome = queue.pop(0) if queue else None
            if callable(outcome):
                outcome = outcome(step)
            if isinstance(outcome, BaseException):
                failure = outcome
            else:
                send = outcome

    def acquire(
        self, databases=(FIRST,), *, evict_after: float | None = None, **arguments: Any
    ) -> Any:
        return self.run(
            acquire_admitted(request(**arguments), databases, self.clock, evict_after=evict_after)
        )

    @property
    def kinds(self) -> list[type]:
        return [type(step) for step in self.steps]


def raised(step: RaiseToken) -> None:
    step.lease.note_token(step.floor + 1)


class TestAcquire:
    def test_a_lock_and_an_admission_make_a_lease(self) -> None:
        granted = lease()
        play = Play(Lock=[granted])
        assert play.acquire() is granted
        assert play.kinds == [Lock, Admit]
        assert granted.admitted

    def test_a_lock_that_is_not_to_be_had_is_none(self) -> None:
        play = Play(Lock=[None])
        assert play.acquire(blocking=False) is None
        assert play.kinds == [Lock]

    def test_a_failing_lock_service_leaves_nothing_to_give_back(self) -> None:
        play = Play(Lock=[LockServiceError("down")])
        with pytest.raises(LockServiceError, match="down"):
            play.acquire()
        assert play.kinds == [Lock]

    def test_a_mark_ahead_raises_the_token_past_it(self) -> None:
        play = Play(Lock=[lease(1)], Admit=[stale(7)], RaiseToken=[raised])
        assert play.acquire().token == 8
        assert play.kinds == [Lock, Admit, RaiseToken, Admit]
        assert play.steps[2].floor == 7

    def test_a_mark_above_which_there_is_no_token_is_told(self) -> None:
        play = Play(Lock=[lease(1)], Admit=[stale(MAX_TOKEN)])
        with pytest.raises(
            LockServiceError, match=r"mark of 'x' .* largest token there is"
        ) as told:
            play.acquire()
        assert told.value.resource == "x"
        assert play.kinds == [Lock, Admit, GiveBack]

    def test_above_the_largest_token_that_was_lost_none_is_asked_for(self) -> None:
        granted, clock = lease(MAX_TOKEN), Clock()

        def slowly(_step: Admit) -> None:
            clock.time += 6

        play = Play(clock, Lock=[granted], Admit=[slowly], Renew=[LeaseLostError("lost")])
        with pytest.raises(LockServiceError, match="largest token there is"):
            play.acquire()
        assert play.kinds == [Lock, Admit, Renew, GiveBack]

    def test_a_mark_that_keeps_moving_is_followed_and_at_last_given_up(self) -> None:
        play = Play(
            Lock=[lease(1)], Admit=[stale(n) for n in range(7, 99)], RaiseToken=[raised] * 99
        )
        with pytest.raises(LockServiceError, match="8 times"):
            play.acquire()
        assert play.kinds.count(Admit) == 8
        assert play.kinds[-1] is GiveBack

    def test_a_lease_lost_before_its_token_was_raised_is_given_back_and_replaced(self) -> None:
        play = Play(Lock=[lease(1), lease(9)], Admit=[stale(7)], RaiseToken=[LeaseLostError()])
        assert play.acquire().token == 9
        assert play.kinds == [Lock, Admit, RaiseToken, GiveBack, Lock, Admit]
        assert play.steps[4].request.floor == 7

    def test_one_that_was_admitted_elsewhere_is_given_back_and_replaced(self) -> None:
        first, second = lease(1), lease(9)
        play = Play(Lock=[first, second], Admit=[None, stale(7)])
        assert play.acquire((FIRST, SECOND)) is second
        assert RaiseToken not in play.kinds
        assert first.token == 1
        assert [s.request.floor for s in play.steps if isinstance(s, Lock)] == [0, 7]

    def test_with_two_databases_the_token_goes_above_the_larger_mark_first(self) -> None:
        play = Play(Lock=[lease(1)], AskMark=[3, 9], RaiseToken=[raised])
        assert play.acquire((FIRST, SECOND)).token == 10
        assert play.kinds == [Lock, AskMark, AskMark, RaiseToken, Admit, Admit]

    def test_with_two_fresh_databases_nothing_is_raised(self) -> None:
        play = Play(Lock=[lease(1)], AskMark=[None, None])
        assert play.acquire((FIRST, SECOND)).token == 1
        assert play.kinds == [Lock, AskMark, AskMark, Admit, Admit]

    def test_an_equal_mark_is_raised_past_too(self) -> None:
        play = Play(Lock=[lease(4)], AskMark=[4, None], RaiseToken=[raised])
        assert play.acquire((FIRST, SECOND)).token == 5

    @pytest.mark.parametrize(
        "failure",
        [LockServiceError("nonsense"), KeyboardInterrupt(), RuntimeError("bug")],
        ids=repr,
    )
    def test_whatever_fails_the_lock_is_given_back(self, failure: BaseException) -> None:
        play = Play(Lock=[lease()], Admit=[failure])
        with pytest.raises(type(failure)):
            play.acquire()
        assert play.kinds[-1] is GiveBack

    def test_a_blocked_admission_gives_the_lock_back_and_tells_how_long_it_took(self) -> None:
        clock = Clock()

        def wait(step: Admit) -> Exception:
            clock.time = step.until
            return LockNotAcquiredError(resource="x", blocked_by=[7])

        play = Play(clock, Lock=[lease()], Admit=[wait])
        with pytest.raises(LockNotAcquiredError) as error:
            play.acquire(blocking_timeout=3)
        assert error.value.waited == pytest.approx(3)
        assert error.value.blocked_by == (7,)
        assert play.kinds == [Lock, Admit, GiveBack]


class TestEviction:
    """Whoever keeps an admission waiting is ended, and the admission tried again."""

    @staticmethod
    def blocked(clock: Clock) -> Any:
        def wait(step: Admit) -> Exception:
            clock.time = step.until
            return LockNotAcquiredError(resource="x", blocked_by=[7], blocked_since=123.5)

        return wait

    def test_after_the_wait_who_blocks_is_evicted_and_the_admission_goes_on(self) -> None:
        clock = Clock()
        began = clock.time
        play = Play(clock, Lock=[lease()], Admit=[self.blocked(clock), None], Evict=[[7]])
        assert play.acquire(evict_after=1.5).admitted
        assert play.kinds == [Lock, Admit, Evict, Admit]
        assert play.steps[1].until - began == pytest.approx(1.5)
        assert play.steps[2].since == 123.5

    def test_it_is_done_again_for_who_blocks_next(self) -> None:
        clock = Clock()
        wait = self.blocked(clock)
        play = Play(clock, Lock=[lease()], Admit=[wait, wait, None], Evict=[[7], [8]])
        play.acquire(evict_after=1)
        assert play.kinds == [Lock, Admit, Evict, Admit, Evict, Admit]

    def test_nobody_is_evicted_for_a_caller_who_has_no_time_left(self) -> None:
        clock = Clock()
        play = Play(clock, Lock=[lease()], Admit=[self.blocked(clock)])
        with pytest.raises(LockNotAcquiredError):
            play.acquire(evict_after=2, blocking_timeout=1)
        assert play.kinds == [Lock, Admit, GiveBack]

    def test_nor_without_blocking_nor_when_no_transaction_blocks(self) -> None:
        clock = Clock()
        play = Play(clock, Lock=[lease()], Admit=[self.blocked(clock)])
        with pytest.raises(LockNotAcquiredError):
            play.acquire(evict_after=2, blocking=False)
        assert Evict not in play.kinds
        play = Play(Lock=[lease()], Admit=[LockNotAcquiredError(resource="x")])
        with pytest.raises(LockNotAcquiredError):
            play.acquire(evict_after=2)
        assert Evict not in play.kinds

    def test_who_finds_no_connection_goes_on_for_as_long_as_he_may_wait(self) -> None:
        clock = Clock()

        def no_connection(_step: Admit) -> LockNotAcquiredError:
            clock.time += 1
            error = NoSlotError.as_error("x")
            error.__cause__ = NoSlotError()
            return error

        play = Play(
            clock,
            Lock=[lease()],
            Admit=[no_connection, self.blocked(clock), None],
            Evict=[[7]],
        )
        began = clock.time
        assert play.acquire(evict_after=1, blocking_timeout=5).admitted
        assert play.kinds == [Lock, Admit, Admit, Evict, Admit]
        assert play.steps[3].until - began == pytest.approx(5), "it keeps its turn"

        play = Play(clock, Lock=[lease()], Admit=[no_connection] * 9)
        with pytest.raises(LockNotAcquiredError, match="no connection was free"):
            play.acquire(evict_after=1, blocking_timeout=3)
        assert play.kinds == [Lock, Admit, Admit, Admit, GiveBack]

    def test_a_mark_that_has_moved_past_us_evicts_nobody_and_heals_as_ever(self) -> None:
        clock = Clock()
        play = Play(
            clock,
            Lock=[lease()],
            Admit=[self.blocked(clock), None],
            Evict=[stale(4)],
            RaiseToken=[raised],
        )
        assert play.acquire(evict_after=1).token == 5
        assert play.kinds == [Lock, Admit, Evict, RaiseToken, Admit]

    def test_who_may_not_evict_waits_and_is_told_so_in_the_end(self) -> None:
        clock = Clock()
        wait = self.blocked(clock)
        play = Play(clock, Lock=[lease()], Admit=[wait] * 3, Evict=[FencingUsageError("no")] * 2)
        with pytest.raises(LockNotAcquiredError) as error:
            play.acquire(evict_after=1, blocking_timeout=3)
        assert error.value.__notes__ == ["fencing: nobody was evicted: no"]
        assert play.kinds == [Lock, Admit, Evict, Admit, Evict, Admit, GiveBack]

    def test_a_lease_from_elsewhere_is_admitted_so_too(self) -> None:
        clock = Clock()
        play = Play(clock, Admit=[self.blocked(clock), None], Evict=[[7]])
        play.run(admit_lease(lease(), [FIRST], clock, evict_after=1))
        assert play.kinds == [Admit, Evict, Admit]


class TestTime:
    def test_an_admission_waits_no_longer_than_the_caller(self) -> None:
        play = Play(Lock=[lease(ttl=10)])
        play.acquire(blocking_timeout=2)
        assert play.steps[1].until - play.clock.time == pytest.approx(2)

    def test_nor_than_the_lease_is_trusted(self) -> None:
        play = Play(Lock=[lease(ttl=10)])
        play.acquire(blocking_timeout=60)
        assert play.steps[1].until - play.clock.time <= 10
        play = Play(Lock=[lease(ttl=10)])
        play.acquire()
        assert 9 < play.steps[1].until - play.clock.time <= 10

    def test_without_blocking_it_does_not_wait(self) -> None:
        play = Play(Lock=[lease()])
        play.acquire(blocking=False)
        assert play.steps[1].until == play.clock.time

    def test_the_deadline_is_one_for_lock_and_admission_and_the_next_lock(self) -> None:
        clock = Clock()

        began = clock.time

        def slow_lock(_step: Lock) -> Lease:
            clock.time += 2
            return lease(ttl=60)

        def slow_loss(_step: RaiseToken) -> Exception:
            clock.time += 2
            return LeaseLostError()

        play = Play(clock, Lock=[slow_lock, slow_lock], Admit=[stale(7)], RaiseToken=[slow_loss])
        play.acquire(blocking_timeout=9)
        locks = [step.request.blocking_timeout for step in play.steps if isinstance(step, Lock)]
        ends = [step.until - began for step in play.steps if isinstance(step, Admit)]
        assert locks == pytest.approx([9, 5])
        assert ends == pytest.approx([9, 9])

    def test_a_loss_after_the_deadline_is_not_tried_again(self) -> None:
        clock = Clock()

        def lost_late(_step: RaiseToken) -> Exception:
            clock.time += 3
            return LeaseLostError()

        play = Play(clock, Lock=[lease()], Admit=[stale(7)], RaiseToken=[lost_late])
        with pytest.raises(LockNotAcquiredError, match="no time was left") as error:
            play.acquire(blocking_timeout=2)
        assert error.value.waited == pytest.approx(3)
        assert play.kinds == [Lock, Admit, RaiseToken, GiveBack]

    def test_an_expired_lease_is_given_back_unadmitted(self) -> None:
        old = lease()
        old.trusted_until = now() - 1
        play = Play(Lock=[old, lease(2)])
        assert play.acquire().token == 2
        assert play.kinds == [Lock, GiveBack, Lock, Admit]

    def test_a_lock_service_that_grants_what_is_over_is_given_up(self) -> None:
        def expired(_step: Lock) -> Lease:
            old = lease()
            old.trusted_until = now() - 1
            return old

        play = Play(Lock=[expired] * 99)
        with pytest.raises(LockServiceError, match="granted 'x' 8 times"):
            play.acquire()
        assert play.kinds == [Lock, GiveBack] * 8

    @pytest.mark.parametrize(("spent", "renewed"), [(1, False), (4, False), (6, True), (9, True)])
    def test_less_than_half_of_the_trust_is_renewed_before_it_is_handed_out(
        self, spent: float, *, renewed: bool
    ) -> None:
        clock = Clock()

        def slow(_step: Admit) -> None:
            clock.time += spent

        play = Play(clock, Lock=[lease(ttl=10)], Admit=[slow])
        play.acquire()
        assert (Renew in play.kinds) is renewed

    def test_one_that_cannot_be_renewed_is_given_back_and_replaced(self) -> None:
        clock = Clock()

        def slow(_step: Admit) -> None:
            clock.time += 9

        first, second = lease(), lease(2)
        second.trusted_until += 9
        play = Play(clock, Lock=[first, second], Admit=[slow], Renew=[LeaseLostError()])
        assert play.acquire() is second
        assert play.kinds == [Lock, Admit, Renew, GiveBack, Lock, Admit]
        assert play.steps[4].request.floor == 1


class TestAdmit:
    def test_every_database_is_asked_in_order(self) -> None:
        play, granted = Play(), lease()
        play.run(admit_lease(granted, (FIRST, SECOND)))
        assert play.kinds == [AskMark, AskMark, Admit, Admit]
        assert [step.database for step in play.steps] == [FIRST, SECOND] * 2
        assert granted.admitted

    def test_a_mark_that_is_ahead_raises_the_token(self) -> None:
        play, granted = Play(Admit=[stale(7)], RaiseToken=[raised]), lease()
        play.run(admit_lease(granted, (FIRST,)))
        assert play.kinds == [Admit, RaiseToken, Admit]
        assert granted.token == 8
        assert granted.admitted

    def test_with_several_databases_before_it_is_final(self) -> None:
        play, granted = Play(AskMark=[None, 7], RaiseToken=[raised]), lease()
        play.run(admit_lease(granted, (FIRST, SECOND)))
        assert play.kinds == [AskMark, AskMark, RaiseToken, Admit, Admit]
        assert granted.token == 8

    @pytest.mark.parametrize("databases", [(FIRST,), (FIRST, SECOND)])
    def test_a_lock_that_is_another_s_by_now_is_stale_and_not_given_back(
        self, databases: tuple[Any, ...]
    ) -> None:
        play, granted = Play(Admit=[stale(7)], AskMark=[7], RaiseToken=[LeaseLostError()]), lease()
        with pytest.raises(StaleFenceError) as refusal:
            play.run(admit_lease(granted, databases))
        assert refusal.value.current_token == 7
        assert play.kinds[-1] is RaiseToken
        assert not granted.admitted

    def test_a_lease_that_was_admitted_is_refused_as_it_is(self) -> None:
        play, granted = Play(Admit=[stale(7)]), lease()
        granted.note_admitted()
        with pytest.raises(StaleFenceError):
            play.run(admit_lease(granted, (FIRST, SECOND)))
        assert play.kinds == [Admit]

    def test_little_that_is_left_is_left(self) -> None:
        play, granted = Play(), lease()
        granted.trusted_until -= 9
        play.run(admit_lease(granted, (FIRST,)))
        assert play.kinds == [Admit]

    def test_an_expired_lease_is_not_even_asked_about(self) -> None:
        play, old = Play(), lease()
        old.trusted_until = now() - 1
        with pytest.raises(LeaseExpiredError):
            play.run(admit_lease(old, (FIRST,)))
        assert play.steps == []

    def test_one_that_expires_meanwhile_is_not_handed_out(self) -> None:
        def expire(step: Admit) -> None:
            step.lease.trusted_until = now() - 1

        play = Play(Admit=[expire])
        with pytest.raises(LeaseExpiredError):
            play.run(admit_lease(lease(), (FIRST,)))

    def test_an_admitted_lease_takes_no_other_token(self) -> None:
        play, granted = Play(), lease()
        play.run(admit_lease(granted, (FIRST,)))
        with pytest.raises(FencingUsageError, match="never given another token"):
            granted.note_token(9)

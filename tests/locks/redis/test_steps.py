"""The decisions, with no server, no clock and no waiting: what is asked next, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from fencing.clock import now
from fencing.errors import (
    FencingUsageError,
    LeaseExpiredError,
    LeaseLostError,
    LockServiceError,
)
from fencing.lease import Lease
from fencing.locks.asking import (
    ATTEMPT_SECONDS,
    ATTEMPTS,
    CLEAN_UP_SECONDS,
    GRACE_SECONDS,
    TROUBLE_SECONDS,
    Pause,
)
from fencing.locks.outcome import Grant, Held
from fencing.locks.redis import steps
from fencing.locks.redis.acquiring import TOO_LATE
from fencing.locks.redis.asking import UNKNOWN, Wait
from fencing.locks.redis.scripts import ACQUIRE, RAISE, RELEASE, RENEW
from fencing.locks.redis.waiting import REFRESH_SECONDS
from fencing.request import MAX_TOKEN
from tests.support.play import HOLDER, Play, play_acquire

if TYPE_CHECKING:
    from fencing.service import LockService

OTHER = "f" * 32


def lease_at(at: float, ttl: float = 10, token: int = 7) -> Lease:
    return Lease(
        cast("LockService", None),
        resource="r",
        token=token,
        holder=HOLDER,
        owner="me",
        ttl=ttl,
        asked_at=at,
    )


class TestAcquiring:
    def test_a_free_lock_takes_one_request(self) -> None:
        play = play_acquire(at=100.0, ttl=2.5, floor=3, owner="me")
        assert play.ask().script is ACQUIRE
        assert play.ask().arguments == (HOLDER, "2500", "3", "me", "0")
        assert play.answer("granted", 8).result == Grant(token=8, asked_at=100.0)

    def test_trust_counts_from_the_request_that_was_answered(self) -> None:
        play = play_acquire(at=100.0).fail(after=1)
        play.wait()
        asked_at = play.at
        # The one that was not answered may still be on its way.
        assert play.answer("granted", 8, after=1).result == Grant(8, asked_at, repeated=True)

    def test_the_key_never_expires_before_the_trust_does(self) -> None:
        assert play_acquire(ttl=0.0101).ask().arguments[1] == "11"

    def test_a_held_lock_is_asked_for_now_and_then_and_once_more_at_the_deadline(self) -> None:
        play = play_acquire(at=100.0, blocking_timeout=3)
        looks = 0
        while play.result is None:
            last_look = play.at
            play.answer("held", 60_000, 7, "them")
            looks += 1
            if play.result is None:
                assert play.wait() <= REFRESH_SECONDS
        # The look before may have been sent just before the deadline, and answered just after it.
        assert 103.0 <= last_look < 103.001
        assert 4 <= looks <= 5
        waited = pytest.approx(last_look + 0.001 - 100.0, abs=1e-6)
        assert play.result == Held(left=60.0, token="7", owner="them", waited=waited)

    def test_the_deadline_is_absolute_however_the_time_was_spent(self) -> None:
        play = play_acquire(at=0.0, blocking_timeout=6).answer("held", 60_000, 7, "", after=0.9)
        play.wait()
        play.fail(after=0.9).wait()
        while play.result is None:
            play.answer("held", 60_000, 7, "", after=0.9)
            if isinstance(play.step, Pause | Wait):
                play.wait()
            elif play.result is None and play.ask().script is RELEASE:
                play.answer("other")
        assert 6.0 <= play.at <= 6.0 + 0.9 + 0.9

    def test_no_pause_outlasts_the_holder_or_the_deadline(self) -> None:
        play = play_acquire(blocking_timeout=5).answer("held", 2, 7, "")
        assert play.step.seconds <= 0.003 + 1e-9
        play = play_acquire(blocking_timeout=0.004).answer("held", 60_000, 7, "", after=0.001)
        assert play.step.seconds <= 0.003 + 1e-9

    @pytest.mark.parametrize("wishes", [{"blocking": False}, {"blocking_timeout": 0}])
    def test_who_does_not_wait_looks_once(self, wishes: dict[str, Any]) -> None:
        assert isinstance(play_acquire(**wishes).answer("held", 5000, 7, "x").result, Held)

    def test_who_waits_for_ever_goes_on(self) -> None:
        play = play_acquire()
        for _ in range(1000):
            play.answer("held", 10_000, 7, "")
            play.wait()
        assert play.answer("granted", 8).result.token == 8


class TestRequestsThatAreLate:
    """A request that was never answered may arrive when nobody wants the lock any more."""

    @pytest.mark.parametrize("wishes", [{"blocking": False}, {"blocking_timeout": 1}])
    def test_who_gives_up_after_one_leaves_a_mark(self, wishes: dict[str, Any]) -> None:
        play = play_acquire(**wishes).fail()
        play.wait()
        while play.answer("held", 60_000, 7, "").result is None and isinstance(play.step, Wait):
            play.wait()
        assert play.ask().script is RELEASE
        assert play.ask().arguments == (HOLDER, UNKNOWN)
        assert isinstance(play.answer("other").result, Held)

    def test_a_release_after_one_leaves_a_mark(self) -> None:
        lease = lease_at(0.0)
        assert steps.release_of(lease) == (HOLDER,)
        lease.asked_again = True
        assert steps.release_of(lease) == (HOLDER, UNKNOWN)


class TestAnswersThatComeTooLate:
    def test_the_lock_is_given_back_and_asked_for_again(self) -> None:
        play = play_acquire(ttl=1).answer("granted", 8, after=0.999)
        assert play.ask().script is RELEASE
        assert play.ask().arguments == (HOLDER,)
        play.answer("released")
        assert play.ask().script is ACQUIRE
        assert play.answer("granted", 9).result.token == 9

    def test_not_for_ever(self) -> None:
        play = play_acquire(ttl=0.01)
        for _ in range(TOO_LATE - 1):
            play.answer("granted", 8, after=0.5).answer("released")
        play.answer("granted", 9, after=0.5)
        assert play.ask().script is RELEASE
        with pytest.raises(LockServiceError, match="longer ttl"):
            play.answer("released")

    def test_not_past_the_deadline(self) -> None:
        play = play_acquire(ttl=0.01, blocking_timeout=0.3).answer("granted", 8, after=0.5)
        with pytest.raises(LockServiceError, match="longer ttl"):
            play.answer("released")


class TestTrouble:
    def test_a_lost_answer_is_asked_for_again_by_the_same_holder(self) -> None:
        play = play_acquire()
        first = play.ask()
        play.fail().wait()
        assert play.ask().arguments == first.arguments
        assert play.answer("granted", 8).result.token == 8

    def test_who_waits_anyway_tries_until_another_server_may_have_taken_over(self) -> None:
        play = play_acquire()
        for _ in range(2 * ATTEMPTS):
            assert play.at < TROUBLE_SECONDS
            play.fail().wait()
        assert play.answer("granted", 8).result.token == 8

    def test_attempts_are_limited_and_cleaned_up_after(self) -> None:
        play = play_acquire(blocking=False)
        for _ in range(ATTEMPTS - 1):
            play.fail().wait()
        play.fail()
        assert play.ask().script is RELEASE
        assert play.ask().see_through
        with pytest.raises(LockServiceError, match="out of order") as caught:
            play.answer("absent")
        assert isinstance(caught.value.__cause__, ConnectionResetError)
        assert caught.value.resource == "r"
        assert not isinstance(caught.value, TimeoutError)

    def test_what_passes_soon_is_tried_for_as_long_as_there_is_time(self) -> None:
        play = play_acquire(blocking=False)
        for _ in range(ATTEMPTS):
            play.fail(brief=True).wait()
        for _ in range(ATTEMPTS - 1):
            play.fail(after=0.0)
            play.at -= play.wait()  # as if no time had passed
        play.fail()
        assert play.ask().script is RELEASE

    def test_who_cannot_ask_because_others_are_answered_tries_for_as_long_as_he_may(self) -> None:
        play = play_acquire(blocking_timeout=60)
        for _ in range(int(50 / ATTEMPT_SECONDS)):
            assert play.fail(after=ATTEMPT_SECONDS, busy=True).wait() == 0.0
        play.fail(after=60.0, busy=True)
        assert play.ask().script is RELEASE

    def test_which_does_not_count_as_an_attempt(self) -> None:
        play = play_acquire(blocking=False)
        for _ in range(2 * ATTEMPTS):
            play.fail(busy=True).wait()
        assert play.ask().script is ACQUIRE

    def test_and_gives_up_when_nobody_is(self) -> None:
        play = play_acquire()
        for _ in range(10):
            play.fail(after=ATTEMPT_SECONDS, busy=True).wait()
        play.fail(after=TROUBLE_SECONDS)
        assert play.ask().script is RELEASE

    @pytest.mark.parametrize("token", ["0", "-1", "²", str(MAX_TOKEN + 1), "9" * 5000])
    def test_what_is_no_token_is_told_as_such(self, token: str) -> None:
        play = play_acquire().answer("granted", token)
        assert play.ask().script is RELEASE
        with pytest.raises(LockServiceError, match="not from 1 to") as caught:
            play.answer("released")
        assert len(str(caught.value)) < 400

    def test_the_clean_up_failing_does_not_hide_why(self) -> None:
        play = play_acquire().fail(passing=False)
        with pytest.raises(LockServiceError, match="out of order"):
            play.fail(passing=False)

    def test_what_will_not_pass_is_not_tried_again(self) -> None:
        play = play_acquire().fail(passing=False)
        assert play.ask().script is RELEASE

    def test_attempts_start_anew_after_an_answer(self) -> None:
        play = play_acquire()
        for _ in range(4 * ATTEMPTS):
            play.fail().wait()
            play.answer("held", 60_000, 7, "").wait()

    @pytest.mark.parametrize("patience", [0.6, 1, 2, 10, 3600, None])
    def test_silence_ends_by_the_deadline_clean_up_included(self, patience: float | None) -> None:
        play = play_acquire(blocking_timeout=patience)
        with pytest.raises(LockServiceError):  # noqa: PT012 - a loop to its end
            while True:
                if isinstance(play.step, Pause | Wait):
                    play.wait()
                else:
                    assert play.step.within <= ATTEMPT_SECONDS
                    play.fail(after=play.step.within)
        limit = TROUBLE_SECONDS + CLEAN_UP_SECONDS
        assert play.at <= (limit if patience is None else min(patience, limit)) + 1e-9

    @pytest.mark.parametrize("patience", [0.001, 0.1, 0.4])
    def test_a_deadline_too_short_for_a_round_trip_is_stretched_a_little(
        self, patience: float
    ) -> None:
        play = play_acquire(blocking_timeout=patience)
        assert play.step.within == GRACE_SECONDS
        play.fail(after=GRACE_SECONDS)
        assert play.step.within == GRACE_SECONDS
        with pytest.raises(LockServiceError):
            play.fail(after=GRACE_SECONDS)

    def test_who_does_not_wait_for_the_lock_does_wait_for_redis(self) -> None:
        play = play_acquire(blocking=False)
        assert play.step.within > GRACE_SECONDS
        play.fail().wait()
        assert play.answer("granted", 8).result.token == 8

    @pytest.mark.parametrize(
        "error", [KeyboardInterrupt(), SystemExit(), RuntimeError("from elsewhere")]
    )
    def test_an_interruption_is_cleaned_up_after_and_passed_on(self, error: BaseException) -> None:
        play = play_acquire().throw(error)
        assert play.ask().script is RELEASE
        assert play.ask().see_through
        with pytest.raises(type(error)):
            play.answer("absent")

    def test_an_interruption_while_waiting_leaves_nothing_to_clean_up(self) -> None:
        play = play_acquire().answer("held", 60_000, 7, "")
        assert isinstance(play.step, Wait)
        with pytest.raises(KeyboardInterrupt):
            play.throw(KeyboardInterrupt())

    def test_being_thrown_away_asks_for_nothing(self) -> None:
        steps = play_acquire().call.go_on()
        next(steps)
        steps.close()


class TestNonsense:
    @pytest.mark.parametrize(
        ("status", "facts", "says"),
        [
            ("endless", [], "no expiry"),
            ("exhausted", [], "2\\*\\*53"),
            ("garbled", [], "not a number"),
            ("granted", [], "token"),
            ("granted", ["0"], "token"),
            ("granted", ["-1"], "token"),
            ("granted", [str(MAX_TOKEN + 1)], "token"),
            ("granted", ["1e+14"], "token"),
            ("granted", ["²"], "token"),
            ("held", ["7"], "no answer"),
            ("renewed", [], "no answer"),
        ],
    )
    def test_is_an_error_of_the_lock_service(
        self, status: str, facts: list[str], says: str
    ) -> None:
        with pytest.raises(LockServiceError, match=says):  # noqa: PT012 - the clean-up may follow
            play = play_acquire().answer(status, *facts)
            play.answer("absent")

    def test_an_answer_to_somebody_else_is_not_taken_for_ours(self) -> None:
        play = play_acquire().answer("granted", 8, echo=OTHER)
        assert play.ask().script is RELEASE
        with pytest.raises(LockServiceError, match="no answer"):
            play.answer("released")


class TestRenewing:
    def test_trust_counts_from_the_request_that_was_answered(self) -> None:
        lease = lease_at(100.0)
        play = Play(steps.renew(lease, 20, started_at=105.0), at=105.0)
        assert play.ask().script is RENEW
        assert play.ask().arguments == (HOLDER, "7", "20000", "0")
        play.fail(after=0.5).wait()
        asked_at = play.at
        play.answer("renewed", after=0.5)
        assert lease.trusted_until == pytest.approx(asked_at + 20 - 0.202)
        assert lease.ttl == 20

    @pytest.mark.parametrize("found", ["absent", "other"])
    def test_what_is_not_ours_is_lost(self, found: str) -> None:
        lease = lease_at(now())
        with pytest.raises(LeaseLostError):
            Play(steps.renew(lease, 20, started_at=now())).answer(found)
        assert lease.lost

    def test_an_answer_after_the_new_trust_is_an_expiry(self) -> None:
        lease = lease_at(100.0, ttl=1)
        play = Play(steps.renew(lease, 0.05, started_at=100.9), at=100.9)
        with pytest.raises(LeaseExpiredError):
            play.answer("renewed", after=0.2)

    def test_trouble_leaves_the_lease_as_it_was(self) -> None:
        lease = lease_at(now())
        before = lease.trusted_until
        with pytest.raises(LockServiceError):
            Play(steps.renew(lease, 20, started_at=now()), at=now()).fail(passing=False)
        assert lease.trusted_until == before
        assert not lease.lost

    def test_nobody_asks_after_the_trust_has_ended(self) -> None:
        lease = lease_at(100.0, ttl=1)
        play = Play(steps.renew(lease, 20, started_at=100.2), at=100.2)
        with pytest.raises(LockServiceError):
            play.fail(after=0.7)


class TestReleasing:
    def release(self, lease: Lease, at: float) -> Play:
        return Play(steps.Releasing(lease, started_at=at), at)

    def test_ours(self) -> None:
        lease = lease_at(100.0)
        play = self.release(lease, 101.0)
        assert play.ask().script is RELEASE
        assert play.ask().arguments == (HOLDER,)
        play.answer("released")
        assert lease.released

    def test_absent_while_trusted(self) -> None:
        lease = lease_at(100.0)
        self.release(lease, 101.0).answer("absent")
        assert lease.released

    def test_absent_while_trusted_though_the_answer_comes_later(self) -> None:
        lease = lease_at(100.0, ttl=1)
        play = self.release(lease, 100.9).fail(after=0.5)
        play.wait()
        play.answer("absent")
        assert lease.released

    def test_absent_after_trust(self) -> None:
        lease = lease_at(100.0)
        with pytest.raises(LeaseLostError, match="nobody"):
            self.release(lease, 111.0).answer("absent")
        assert lease.lost
        assert not lease.released

    def test_anothers(self) -> None:
        lease = lease_at(100.0)
        with pytest.raises(LeaseLostError, match="another"):
            self.release(lease, 101.0).answer("other")
        assert lease.lost
        assert not lease.released

    def test_anothers_already_when_the_answer_to_our_first_request_was_lost(self) -> None:
        lease = lease_at(100.0)
        play = self.release(lease, 101.0).fail()
        play.wait()
        play.answer("other")
        assert lease.released

    def test_anothers_after_trust_is_a_loss_however_often_we_asked(self) -> None:
        lease = lease_at(100.0)
        play = self.release(lease, 111.0).fail()
        play.wait()
        with pytest.raises(LeaseLostError, match="another"):
            play.answer("other")

    def test_out_of_reach(self) -> None:
        lease = lease_at(now())
        with pytest.raises(LockServiceError):
            self.release(lease, now()).fail(passing=False)
        assert lease.released

    def test_interrupted_it_is_tried_once_more(self) -> None:
        lease = lease_at(now())
        play = self.release(lease, now()).throw(KeyboardInterrupt())
        assert lease.released
        assert play.ask().script is RELEASE
        assert play.ask().see_through
        with pytest.raises(KeyboardInterrupt):
            play.answer("released")


class TestHealing:
    def test_the_token_becomes_the_lease_s(self) -> None:
        lease = lease_at(100.0)
        play = Play(steps.raise_token(lease, 41, started_at=101.0), 101.0)
        assert play.ask().script is RAISE
        assert play.ask().arguments == (HOLDER, "41")
        play.answer("raised", 42)
        assert lease.token == 42

    def test_a_token_not_above_the_floor_is_nonsense(self) -> None:
        lease = lease_at(100.0)
        with pytest.raises(LockServiceError):
            Play(steps.raise_token(lease, 41, started_at=101.0), 101.0).answer("raised", 41)
        assert lease.token == 7

    @pytest.mark.parametrize("found", ["absent", "other"])
    def test_what_is_not_ours_is_lost(self, found: str) -> None:
        lease = lease_at(now())
        with pytest.raises(LeaseLostError):
            Play(steps.raise_token(lease, 41, started_at=now())).answer(found)
        assert lease.lost
        assert lease.token == 7

    def test_an_admitted_lease_is_not_even_asked_for(self) -> None:
        lease = lease_at(now())
        lease.note_admitted()
        with pytest.raises(FencingUsageError):
            next(steps.raise_token(lease, 41, started_at=now()))

    @pytest.mark.parametrize("found", ["exhausted", "garbled"])
    def test_a_counter_that_cannot_go_on(self, found: str) -> None:
        with pytest.raises(LockServiceError, match="counter"):
            Play(steps.raise_token(lease_at(now()), 41, started_at=now())).answer(found)

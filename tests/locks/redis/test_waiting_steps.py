"""What is decided about waiting, with no server, no clock and no waiting."""

from __future__ import annotations

from typing import Any

import pytest

from fencing.errors import LockServiceError
from fencing.locks.outcome import Grant, Held
from fencing.locks.redis.asking import UNKNOWN
from fencing.locks.redis.durability import Durability
from fencing.locks.redis.scripts import ACQUIRE, RELEASE
from fencing.locks.redis.waiting import LOST, READY, REFRESH_SECONDS, TURN, Audience, Lines
from tests.support.play import HOLDER, play_acquire

NONCE = "ab" * 16
ASKED = (HOLDER, "10000", "0", "me", "0")
RECORD = f"{HOLDER}:10000:0:{NONCE}:me"


def play(**wishes: Any) -> Any:
    return play_acquire(owner="me", **wishes)


def listening(**wishes: Any) -> Any:
    """Already listens, because others wait, too."""
    return play_acquire(owner="me", nonce=NONCE, listens=True, **wishes)


class TestRegistering:
    def test_who_listens_registers_by_asking(self) -> None:
        assert listening().ask().arguments == (*ASKED, RECORD)

    def test_who_does_not_begins_to_when_the_lock_is_held_and_asks_again_at_once(self) -> None:
        play = play_acquire(owner="me", nonce=NONCE)
        assert play.ask().arguments == ASKED
        play.answer("held", 60_000, 7, "them")
        assert play.ask().arguments == (*ASKED, RECORD)

    def test_who_cannot_listen_asks_now_and_then(self) -> None:
        attempt = play().answer("held", 60_000, 7, "them")
        assert 0 < attempt.wait() <= REFRESH_SECONDS
        assert attempt.ask().arguments == ASKED

    def test_who_does_not_wait_does_not_register(self) -> None:
        attempt = listening(blocking=False)
        assert attempt.ask().arguments == ASKED
        assert isinstance(attempt.answer("held", 5000, 7, "x").result, Held)

    def test_the_last_attempt_takes_the_record_away(self) -> None:
        attempt = listening(blocking_timeout=0.5).answer("held", 60_000, 7, "them")
        attempt.wait()
        assert attempt.ask().arguments == (*ASKED, RECORD, "last")
        assert isinstance(attempt.answer("held", 60_000, 7, "them").result, Held)

    def test_an_answer_after_the_deadline_is_followed_by_a_last_attempt(self) -> None:
        attempt = listening(blocking_timeout=0.5).answer("held", 60_000, 7, "them", after=0.6)
        assert attempt.wait() == 0
        assert attempt.ask().arguments[-1] == "last"

    def test_an_interrupted_waiter_takes_the_record_away(self) -> None:
        attempt = listening().answer("held", 60_000, 7, "them").throw(KeyboardInterrupt())
        assert attempt.ask().script is RELEASE
        assert attempt.ask().arguments == (HOLDER, UNKNOWN, RECORD)
        assert attempt.ask().see_through
        with pytest.raises(KeyboardInterrupt):
            attempt.answer("other")

    def test_so_does_one_whom_redis_does_not_answer(self) -> None:
        attempt = listening().answer("held", 60_000, 7, "them")
        attempt.wait()
        attempt.fail(passing=False)
        assert attempt.ask().arguments == (HOLDER, UNKNOWN, RECORD)
        with pytest.raises(LockServiceError):
            attempt.answer("other")

    def test_a_lost_channel_is_no_reason_to_forget_the_record(self) -> None:
        attempt = listening().answer("held", 60_000, 7, "them")
        attempt.nonce = ""
        attempt.tell()
        assert attempt.ask().arguments == ASKED
        attempt.throw(KeyboardInterrupt())
        assert attempt.ask().arguments == (HOLDER, UNKNOWN, RECORD)

    def test_who_has_lost_his_place_asks_for_his_first_one(self) -> None:
        attempt = listening().answer("held", 60_000, 7, "them", "3")
        attempt.wait()
        assert attempt.ask().arguments == (*ASKED, RECORD, "", "3")
        attempt.answer("held", 60_000, 8, "them", "9").wait()
        assert attempt.ask().arguments == (*ASKED, RECORD, "", "3")


class TestBelieving:
    """A lock was handed to us, says a message: is it ours, and for how long?"""

    def test_trust_counts_from_the_last_request_before_and_for_two_seconds(self) -> None:
        attempt = listening(at=100.0).answer("held", 60_000, 7, "them").tell(8, after=0.5)
        assert attempt.result == Grant(token=8, asked_at=100.0, handed_for=2.0)

    def test_or_for_the_ttl_if_that_is_shorter(self) -> None:
        attempt = listening(at=100.0, ttl=1).answer("held", 60_000, 7, "them").tell(8, after=0.1)
        assert attempt.result == Grant(token=8, asked_at=100.0, handed_for=1)

    def test_every_request_that_finds_it_held_begins_it_anew(self) -> None:
        attempt = listening(at=100.0).answer("held", 60_000, 7, "them")
        attempt.wait()
        asked_at = attempt.at
        attempt.answer("held", 60_000, 7, "them").tell(8, after=0.5)
        assert attempt.result == Grant(token=8, asked_at=asked_at, handed_for=2.0)

    def test_the_trust_after_trouble_counts_from_the_request_that_was_answered(self) -> None:
        attempt = listening(at=100.0).fail(after=0.5)
        attempt.wait()
        asked_at = attempt.at
        attempt.answer("held", 60_000, 7, "them").tell(8)
        assert attempt.result.asked_at == asked_at

    @pytest.mark.parametrize(("ttl", "after"), [(60, 1.49), (60, 3.0), (0.5, 0.38)])
    def test_with_little_trust_left_it_is_asked_for(self, ttl: float, after: float) -> None:
        attempt = listening(ttl=ttl).answer("held", 60_000, 7, "them").tell(8, after=after)
        assert attempt.ask().script is ACQUIRE
        asked_at = attempt.at
        assert attempt.answer("granted", 8).result == Grant(token=8, asked_at=asked_at)

    def test_an_old_message_that_was_late_is_not_believed(self) -> None:
        # We were handed the lock with token 8, and never heard of it; it ran out, and another has
        # it with token 9, as we are told when we ask. Now the message of token 8 comes.
        attempt = listening().answer("held", 60_000, 7, "them")
        attempt.wait()
        attempt.answer("held", 60_000, 9, "others").tell(8, after=0.01)
        assert attempt.ask().script is ACQUIRE
        # The one of token 10 is another matter.
        attempt.answer("held", 60_000, 9, "others").tell(10, after=0.01)
        assert attempt.result.token == 10

    def test_nor_is_the_message_of_a_grant_that_another_has(self) -> None:
        attempt = listening().answer("held", 60_000, 7, "them").tell(7, after=0.01)
        assert attempt.ask().script is ACQUIRE

    def test_nothing_is_believed_while_the_lock_carries_no_token_of_ours(self) -> None:
        attempt = listening().answer("held", 60_000, "", "").tell(8, after=0.01)
        assert attempt.ask().script is ACQUIRE

    def test_nothing_is_believed_once_redis_has_lost_its_counter(self) -> None:
        # Of what was said before that, 8 might be the token of a grant that is gone.
        attempt = listening().answer("held", 60_000, 7, "them")
        attempt.wait()
        attempt.answer("held", 60_000, 1, "others").tell(8, after=0.01)
        assert attempt.ask().script is ACQUIRE
        attempt.answer("held", 60_000, 2, "others").tell(9, after=0.01)
        assert attempt.ask().script is ACQUIRE

    @pytest.mark.parametrize(
        "durability", [Durability(guarded=True), Durability(counter_ttl=None, replicas=1)]
    )
    def test_nor_under_a_guard_or_with_replicas(self, durability: Durability) -> None:
        attempt = listening(durability=durability)
        attempt.answer("held", 60_000, 7, "them", acknowledged=1).tell(8, after=0.01)
        assert attempt.ask().script is ACQUIRE
        attempt.answer("granted", 8, acknowledged=1)
        assert attempt.result.handed_for is None

    def test_an_interrupt_between_the_message_and_its_use_gives_the_lock_back(self) -> None:
        attempt = listening().answer("held", 60_000, 7, "them").throw(KeyboardInterrupt())
        assert attempt.ask().arguments == (HOLDER, UNKNOWN, RECORD)


class TestPauses:
    def test_being_told_something_ends_them(self) -> None:
        attempt = listening().answer("held", 60_000, 7, "them").tell(after=0.01)
        assert attempt.ask().script is ACQUIRE

    def test_the_end_of_the_holder_s_lease_ends_them(self) -> None:
        attempt = listening().answer("held", 200, 7, "them")
        assert attempt.wait() == pytest.approx(0.201)

    def test_waiters_that_began_together_do_not_ask_together(self) -> None:
        pauses = {listening().answer("held", 60_000, 7, "them").wait() for _ in range(20)}
        assert len(pauses) == 20
        assert all(0.5 * REFRESH_SECONDS < pause <= REFRESH_SECONDS for pause in pauses)


class Box(list[Any]):
    """Who waits: finds what it is told in itself."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    put = list.append


class TestLines:
    def test_one_after_the_other(self) -> None:
        lines: Lines[Box] = Lines()
        first, second, third = boxes = [Box() for _ in range(3)]
        assert [lines.join("r", box) for box in boxes] == [True, False, False]
        lines.leave("r", first)
        assert [list(box) for box in boxes] == [[], [TURN], []]
        lines.leave("r", second)
        assert list(third) == [TURN]
        lines.leave("r", third)
        assert lines.join("r", Box())

    def test_who_leaves_from_the_middle_changes_nobody_s_turn(self) -> None:
        lines: Lines[Box] = Lines()
        first, second, third = boxes = [Box() for _ in range(3)]
        for box in boxes:
            lines.join("r", box)
        lines.leave("r", second)
        assert [list(box) for box in boxes] == [[], [], []]
        lines.leave("r", first)
        assert [list(box) for box in boxes] == [[], [], [TURN]]
        assert list(third) == [TURN]

    def test_resources_have_lines_of_their_own(self) -> None:
        lines: Lines[Box] = Lines()
        assert lines.join("r", Box())
        assert lines.join("s", Box())

    def test_a_line_that_is_scattered_is_everybody_s_turn(self) -> None:
        lines: Lines[Box] = Lines()
        boxes = [Box() for _ in range(3)]
        for box in boxes:
            lines.join("r", box)
        lines.scatter("r")
        assert [list(box) for box in boxes] == [[TURN]] * 3
        assert lines.join("r", late := Box())
        for box in boxes:
            lines.leave("r", box)  # does nothing to the new line
        assert not lines.join("r", Box())
        assert list(late) == []


class TestAudiences:
    def test_each_hears_what_it_is_told(self) -> None:
        audience: Audience[Box] = Audience()
        audience.add(HOLDER, mine := Box())
        audience.add("f" * 32, others := Box())
        assert audience.hear(f"{HOLDER} 12".encode()) is None
        assert (list(mine), list(others)) == ([12], [])

    @pytest.mark.parametrize(
        "line", [b"", b"message", b"$34", b"-NOPERM", b"f" * 32, b"f" * 32 + b" -1", b"\xff"]
    )
    def test_what_is_no_message_is_passed_over(self, line: bytes) -> None:
        audience: Audience[Box] = Audience()
        audience.add("f" * 32, box := Box())
        assert audience.hear(line) is None
        assert list(box) == []

    def test_what_nobody_waits_for_is_told(self) -> None:
        audience: Audience[Box] = Audience()
        audience.add(HOLDER, box := Box())
        audience.remove(HOLDER)
        assert audience.hear(f"{HOLDER} 12".encode()) == HOLDER
        assert list(box) == []

    def test_the_beginning_and_the_end_are_told_to_all(self) -> None:
        audience: Audience[Box] = Audience()
        boxes = [Box(), Box()]
        for number, box in enumerate(boxes):
            audience.add(str(number) * 32, box)
        audience.begin()
        assert audience.listens
        audience.end()
        assert audience.over
        assert not audience.listens
        assert [list(box) for box in boxes] == [[READY, LOST]] * 2
        assert len(audience) == 0

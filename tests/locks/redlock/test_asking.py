"""What several answers come to, without I/O: when a question is clear, and who is waited for."""

from __future__ import annotations

import pytest

from fencing.locks.asking import Trouble
from fencing.locks.redis.asking import Reply
from fencing.locks.redlock.acquiring import ACCEPTED, LOCKED, holder_of_round, rounds_of
from fencing.locks.redlock.asking import LINGER_SECONDS, AskNodes, Gathering, Quorum, Wanted
from fencing.locks.redlock.scripts import LOCK
from fencing.locks.redlock.steps import RENEWED

QUORUM = Quorum(5, 0.25)
ECHO = "a" * 32


def reply(word: str, *facts: str) -> Reply:
    return Reply([word, ECHO, *facts], 100.0, 100.1)


def trouble(*, passing: bool = True) -> Trouble:
    return Trouble("it is gone", passing=passing, at=100.1)


def gathering(wanted: Wanted | None, silent: set[int] | None = None) -> Gathering:
    step = AskNodes(QUORUM, LOCK, (ECHO,), 0.25, wanted)
    return Gathering(step, 5, 100.0, set() if silent is None else silent)


@pytest.mark.parametrize(
    ("wanted", "words", "clear"),
    [
        (LOCKED, "granted granted", False),
        (LOCKED, "granted granted granted", True),
        (LOCKED, "granted granted held held", False),
        (LOCKED, "held held", False),
        (LOCKED, "held held held", True),
        (LOCKED, "held endless garbled", True),
        (ACCEPTED, "accepted accepted accepted", True),
        (ACCEPTED, "above", True),
        (ACCEPTED, "absent other accepted accepted", False),
        (ACCEPTED, "absent other absent", True),
        (RENEWED, "renewed renewed absent other", False),
        (RENEWED, "absent other other", True),
    ],
)
def test_a_question_is_clear_when_no_further_answer_can_change_it(
    wanted: Wanted, words: str, *, clear: bool
) -> None:
    assert wanted.is_clear(QUORUM, words.split()) is clear


def test_all_are_waited_for_until_it_is_clear_and_then_for_a_moment() -> None:
    asked = gathering(LOCKED)
    for node in range(3):
        assert asked.left(100.0) == pytest.approx(0.25)
        asked.take(node, reply("granted", "0"))
    assert asked.left(100.0) == pytest.approx(LINGER_SECONDS)
    assert asked.left(100.0 + LINGER_SECONDS / 2) == pytest.approx(LINGER_SECONDS / 2)
    assert asked.left(100.1) == 0
    asked.end(100.1)


def test_whoever_was_late_before_is_not_waited_for_once_it_is_clear() -> None:
    silent = {3, 4}
    asked = gathering(LOCKED, silent)
    for node in range(3):
        assert asked.left(100.0) > 0
        asked.take(node, reply("granted", "0"))
    assert asked.left(100.0) == 0


def test_who_answers_is_waited_for_again_and_who_does_not_is_not() -> None:
    silent = {0}
    asked = gathering(LOCKED, silent)
    for node in range(3):
        asked.take(node, reply("granted", "0"))
    asked.take(3, trouble())
    asked.end(100.1)
    assert silent == {3, 4}


def test_too_few_answers_are_trouble_that_says_of_whom() -> None:
    asked = gathering(LOCKED)
    asked.take(0, reply("granted", "0"))
    asked.take(1, reply("granted", "0"))
    asked.take(2, trouble())
    with pytest.raises(
        Trouble, match="3 of 5 nodes have to agree, and 2 answered: node 2: it is"
    ) as caught:
        asked.end(100.25)
    assert caught.value.passing
    assert "2 did not answer within 0.25 s" in caught.value.help


def test_a_majority_of_answers_will_do_for_a_lock_when_the_time_is_up() -> None:
    asked = gathering(LOCKED)
    for node, word in enumerate(("granted", "granted", "held")):
        asked.take(node, reply(word, "0", "0", "b", ""))
    assert asked.left(100.2) > 0
    assert asked.end(100.25).words() == ["granted", "granted", "held", "", ""]


def test_trouble_that_lasts_on_so_many_that_no_majority_is_left_is_not_tried_again() -> None:
    for lasting, passing in ((2, True), (3, False)):
        asked = gathering(LOCKED)
        for node in range(5):
            asked.take(node, trouble(passing=node >= lasting))
        with pytest.raises(Trouble) as caught:
            asked.end(100.1)
        assert caught.value.passing is passing


def test_an_answer_to_another_question_counts_for_nothing() -> None:
    asked = gathering(LOCKED)
    for node in range(3):
        asked.take(node, Reply(["granted", "b" * 32, "0"], 100.0, 100.1))
    with pytest.raises(Trouble, match="no answer to what was asked"):
        asked.end(100.25)


def test_a_clean_up_waits_for_those_who_may_answer() -> None:
    asked = gathering(None, {4})
    for node in range(3):
        asked.take(node, reply("released"))
    assert asked.left(100.0) == pytest.approx(0.25)
    asked.take(3, trouble())
    assert asked.left(100.0) == 0
    asked.end(100.0)


@pytest.mark.parametrize(("ttl", "within"), [(None, 0.25), (60.0, 0.25), (0.4, 0.1), (0.01, 0.02)])
def test_a_node_has_a_quarter_of_the_ttl_at_most(ttl: float | None, within: float) -> None:
    assert QUORUM.within(ttl) == within


def test_each_round_has_a_holder_of_its_own_and_all_begin_alike() -> None:
    holder = "0123456789abcdef" * 2
    rounds = [holder_of_round(holder, number) for number in (0, 1, 16)]
    assert len(set(rounds)) == 3
    assert {len(each) for each in rounds} == {32}
    assert all(each.startswith(rounds_of(holder)) for each in rounds)
    assert rounds_of(holder) != rounds_of("f" * 32)

"""Which node of a cluster has which slot, as far as is known."""

from __future__ import annotations

from typing import Any

import pytest

from fencing.locks.redis.resp import Answers
from fencing.locks.redis.topology import MOVED_SECONDS, SLOTS, Topology, slot_of

A, B, C = ("a", 1), ("b", 2), ("c", 3)
HALF = SLOTS // 2
# A node is told with its name and what else is known of it.
ANSWER = [
    [0, HALF - 1, [b"a", 1, b"id-a", []], [b"c", 3, b"id-c", []]],
    [HALF, SLOTS - 1, [b"b", 2, b"id-b", []]],
]


def learned(answer: list[Any] = ANSWER, **given: Any) -> Topology:
    topology = Topology([A], **given)
    topology.learn(answer, A, at=10.0)
    return topology


def test_at_first_nothing_is_known_but_whom_to_ask() -> None:
    topology = Topology([A, B, A])
    assert topology.is_due(0.0)
    assert topology.to_ask() == [A, B]
    assert topology.owner_of(0) is None
    assert topology.primaries == []


def test_each_slot_is_its_primary_s() -> None:
    topology = learned()
    assert [topology.owner_of(slot) for slot in (0, HALF - 1, HALF, SLOTS - 1)] == [A, A, B, B]
    assert topology.primaries == [A, B]
    assert topology.members == {A, B, C}
    assert not topology.is_due(1e9)


def test_a_slot_of_nobody_has_no_owner() -> None:
    topology = learned([[1, 5, [b"a", 1, b"id"]]])
    assert topology.owner_of(0) is None
    assert topology.owner_of(1) == A


@pytest.mark.parametrize("host", [b"", b"?", None], ids=repr)
def test_a_node_that_does_not_know_its_name_is_where_it_was_asked(host: bytes | None) -> None:
    topology = learned([[0, SLOTS - 1, [host, 7, b"id"]]])
    assert topology.owner_of(0) == ("a", 7)
    assert topology.redirect(0, "", 8, B) == ("b", 8)


def test_addresses_are_told_and_others_connected_to() -> None:
    topology = learned(remap=lambda address: (f"{address[0]}.example", address[1]))
    assert topology.owner_of(0) == ("a.example", 1)
    assert topology.redirect(0, "z", 8, B) == ("z.example", 8)
    assert topology.other("y", 9, B) == ("y.example", 9)


def test_who_did_not_answer_is_asked_last_and_before_the_next_request() -> None:
    topology = learned()
    topology.doubt(A)
    assert topology.is_due(10.0)
    assert topology.to_ask() == [B, C, A]
    topology.learn(ANSWER, B, at=11.0)
    assert not topology.is_due(11.0)
    assert topology.to_ask() == [A, B, C]


def test_a_redirection_is_believed_at_once_and_the_rest_looked_at_soon() -> None:
    topology = learned()
    assert topology.redirect(0, "b", 2, A) == B
    assert topology.owner_of(0) == B
    assert topology.owner_of(1) == A
    assert not topology.is_due(10.0 + MOVED_SECONDS / 2)
    assert topology.is_due(10.0 + MOVED_SECONDS)


def test_whoever_wants_all_nodes_has_them_looked_for() -> None:
    topology = learned()
    topology.look_again()
    assert topology.is_due(0.0)
    topology.learn(ANSWER, A, at=11.0)
    assert not topology.is_due(1e9)


def test_a_slot_is_that_of_the_hash_tag() -> None:
    assert slot_of(b"fencing:{r}:lock") == slot_of(b"fencing:{r}:queue") == slot_of(b"r")


def test_the_answer_of_either_protocol_is_read() -> None:
    answers = Answers(Exception)
    node = b"*4\r\n$1\r\na\r\n:1\r\n$2\r\nid\r\n"
    answers.feed(b"*1\r\n*3\r\n:0\r\n:5\r\n" + node + b"%1\r\n$8\r\nhostname\r\n$1\r\nh\r\n")
    expected = [[0, 5, [b"a", 1, b"id", [b"hostname", b"h"]]]]
    assert answers.next() == expected
    assert not answers.unread

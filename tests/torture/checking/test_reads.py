"""What was read, and what callers see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencing.torture.history import Outcome, Read
from tests.support.broken import catches, changed, find
from tests.support.histories import REGISTER, TTL, World, a_set, two_leases


@catches("reads are current", "token 2 read 0 where smaller tokens had left 1")
def test_a_read_is_older_than_its_admission():
    world = two_leases()
    world.look("w2.1:1", REGISTER, reads=(Read("register:0", REGISTER, 0),))
    return world.history()


@catches("reads are current", "token 2 read 0 where smaller tokens had left 1")
def test_a_refused_transaction_had_read_what_is_older_than_its_admission():
    world = two_leases()
    world.acquire("register:0")
    world.refuse("w2.1:1", REGISTER, reads=(Read("register:0", REGISTER, 0),))
    return world.history()


@catches("reads are current", "token 2 read 1 after it had known 2")
def test_a_read_misses_its_own_leases_write():
    world = two_leases()
    world.look("w2.1:1", REGISTER, reads=(Read("register:0", REGISTER, 1),))
    return world.history()


@catches("reads are current", "token 1 read 1 after it had known 2")
def test_a_read_goes_back():
    world = World()
    a = world.acquire("register:0")
    world.add(a, REGISTER)
    world.look(a, REGISTER, reads=(Read("register:0", REGISTER, 2),))
    world.look(a, REGISTER)
    return world.history()


@catches("reads are current", "token 1 read 1 after 2 in one transaction")
def test_a_read_goes_back_in_its_transaction():
    world = World()
    a = world.acquire("register:0")
    world.add(a, REGISTER)
    reads = (Read("register:0", REGISTER, 2), Read("register:0", REGISTER, 1))
    world.look(a, REGISTER, reads=reads)
    return world.history()


@catches("reads are current", "token 2 read 2 where smaller tokens had left 3")
def test_a_set_is_read_older_than_its_admission():
    world = a_set()
    world.look(world.acquire("set:0"), "set:0", reads=(Read("set:0", "set:0", 2),))
    return world.history()


@catches("reads are current", "token 1 read 2 after it had known 3")
def test_a_set_is_read_without_the_leases_own_element():
    world = a_set()
    world.look("w0.1:0", "set:0", reads=(Read("set:0", "set:0", 2),))
    return world.history()


def test_transactions_of_one_lease_that_overlap_may_read_in_any_order():
    world = World()
    a = world.acquire("register:0")
    world.add(a, REGISTER)
    began_at = world.transactions[-1].began_at
    world.look(a, REGISTER, reads=(Read("register:0", REGISTER, 0),), began_at=began_at)
    assert find("reads are current", world.history()) == []


@catches("registers are linearizable", "has no place in any order: the register can only have been")
def test_two_add_to_the_same_number():
    history = two_leases().history()
    reads = (Read("register:0", REGISTER, 0),)
    return replace(history, transactions=changed(history.transactions, 1, reads=reads))


@catches("registers are linearizable", r"\(look, read 1\) has no place")
def test_a_look_is_older_than_what_was_acknowledged():
    world = two_leases()
    world.look("w2.1:1", REGISTER, reads=(Read("register:0", REGISTER, 1),))
    return world.history()


@catches("registers are linearizable", r"\(look, read 3\) has no place")
def test_a_look_sees_what_nobody_wrote():
    world = two_leases()
    world.look("w2.1:1", REGISTER, reads=(Read("register:0", REGISTER, 3),))
    return world.history()


@catches("registers are linearizable", r"\(look, read 3\) has no place")
def test_a_look_sees_what_was_found_to_be_rolled_back():
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=Outcome.UNKNOWN, resolved="rolled back")
    world.look("w2.1:1", REGISTER, reads=(Read("register:0", REGISTER, 3),))
    return world.history()


@catches("registers are linearizable", r"\(add, read 2\) has no place")
def test_two_are_found_to_be_committed_on_one_number():
    world = two_leases()
    for _ in range(2):
        world.add("w2.1:1", REGISTER, outcome=Outcome.UNKNOWN, resolved="committed")
    return world.history()


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.CUT_OFF])
@pytest.mark.parametrize("happened", [False, True])
def test_what_nobody_knows_may_have_taken_effect(outcome, happened):
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=outcome, happened=happened)
    world.look("w2.1:1", REGISTER)
    assert find("registers are linearizable", world.history()) == []


def test_what_a_killed_worker_read_is_known_from_what_it_wrote():
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=Outcome.CUT_OFF, happened=True, reads=())
    world.look("w2.1:1", REGISTER)
    assert find("registers are linearizable", world.history()) == []


def test_looks_after_the_trust_promise_nothing():
    world = two_leases()
    world.tick(TTL)
    world.look("w2.1:1", REGISTER, reads=(Read("register:0", REGISTER, 1),))
    assert find("registers are linearizable", world.history()) == []


@pytest.mark.parametrize("checker", ["reads are current", "registers are linearizable"])
def test_what_was_read_may_be_lost_by_a_database_that_loses_what_it_acknowledged(checker):
    history = test_a_look_is_older_than_what_was_acknowledged.__wrapped__()
    assert find(checker, history) != []
    assert find(checker, replace(history, loses_acknowledged=True)) == []


def test_what_was_not_acknowledged_need_not_be_read_yet():
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=Outcome.UNKNOWN, happened=True)
    world.look("w2.1:1", REGISTER, reads=(Read("register:0", REGISTER, 2),))
    assert find("reads are current", world.history()) == []
    assert find("registers are linearizable", world.history()) == []


def test_a_set_that_has_shrunk_may_be_read_smaller():
    world = World()
    a = world.acquire("set:0")
    world.append(a, "set:0")
    world.append(a, "set:0", gone=2)
    world.look(a, "set:0", reads=(Read("set:0", "set:0", 2), Read("set:0", "set:0", 1)))
    world.look(a, "set:0")
    assert find("reads are current", world.history()) == []


def test_a_transaction_may_read_again_what_it_has_written():
    world = two_leases()
    reads = (Read("register:0", REGISTER, 2), Read("register:0", REGISTER, 3))
    world.add("w2.1:1", REGISTER, outcome=Outcome.ROLLED_BACK, reads=reads)
    world.look("w2.1:1", REGISTER)
    assert find("reads are current", world.history()) == []

"""Tokens, admissions and marks, in their order."""

from __future__ import annotations

from dataclasses import replace

from fencing.torture.checking import check
from tests.support.broken import catches, changed, find
from tests.support.histories import REGISTER, World, two_leases


@catches("tokens never decrease", "token 1 wrote after token 2")
def test_an_old_token_writes_last():
    world = two_leases()
    world.add("w1.1:0", REGISTER)
    return world.history()


@catches("nothing after a newer admission", "token 1 wrote after the admission of 2")
def test_an_old_token_writes_between_admission_and_write():
    world = World()
    a = world.acquire("register:0", worker="w1.1")
    b = world.acquire("register:0", worker="w2.1")
    world.add(a, REGISTER)
    world.add(b, REGISTER)
    return world.history()


@catches("nothing after a newer admission", "token 1 wrote after the admission of 7")
def test_a_token_writes_after_a_raise_by_hand():
    world = World()
    a = world.acquire("register:0", worker="w1.1")
    world.admit("register:0", 7, "")
    world.add(a, REGISTER)
    return world.history()


@catches("one holder per token", "token 2 has holders")
def test_a_token_is_admitted_for_two():
    world = two_leases()
    world.admit("register:0", 2, "another")
    return world.history()


@catches("one holder per token", "token 2 has holders")
def test_two_write_with_one_token():
    history = two_leases().history()
    return replace(history, writes=changed(history.writes, 1, holder="another"))


@catches("marks survive", "the mark went back from 2 to 1")
def test_a_smaller_token_is_admitted():
    world = two_leases()
    world.admit("register:0", 1, "another")
    world.marks["register:0"] = (2, "")
    return world.history()


@catches("marks survive", "token 2 was admitted after the mark 2 was pruned")
def test_a_pruned_mark_is_admitted_again():
    world = two_leases()
    world.prune("register:0")
    world.admit("register:0", 2, "holder of w2.1:1")
    return world.history()


@catches("marks survive", "the mark went back from 2 to 1")
def test_a_smaller_token_is_admitted_after_pruning():
    world = two_leases()
    world.prune("register:0")
    world.admit("register:0", 1, "another")
    return world.history()


@catches("marks survive", "the mark is 1 at the end; it was 2")
def test_a_mark_is_smaller_at_the_end():
    world = two_leases()
    world.marks["register:0"] = (1, "")
    return world.history()


@catches("marks survive", "the mark is None at the end; it was 2")
def test_a_mark_is_gone_at_the_end():
    world = two_leases()
    del world.marks["register:0"]
    return world.history()


def test_admissions_without_writes_are_no_decrease():
    world = World()
    a = world.acquire("register:0", worker="w1.1")
    world.acquire("register:0", worker="w2.1")
    world.add(a, REGISTER)
    assert find("tokens never decrease", world.history()) == []


@catches("nothing after a newer admission", "token 2 wrote after the admission of 3")
def test_a_token_writes_after_the_mark_went_back_to_it():
    world = two_leases()
    world.admit("register:0", 3, "another")
    world.admit("register:0", 2, "holder of w2.1:1")
    world.add("w2.1:1", REGISTER)
    return world.history()


def test_a_holder_may_be_admitted_again_and_a_mark_be_nobodys():
    world = two_leases()
    world.admit("register:0", 2, "holder of w2.1:1")
    world.admit("register:0", 2, "")
    world.marks["register:0"] = (2, "holder of w2.1:1")
    assert check(world.history()) == []


def test_a_run_without_a_guard_has_no_admissions():
    history = replace(two_leases().history(), admissions=())
    assert {each.checker for each in check(history)} == {"nothing without a lease"}

"""Updates, and what is left of them."""

from __future__ import annotations

from dataclasses import replace

from fencing.torture.checking import check
from fencing.torture.history import Read
from tests.support.broken import catches, changed, without
from tests.support.histories import REGISTER, World, a_set, two_leases


@catches("no lost update", "0 was changed to 1 where 1 was before")
def test_an_update_overwrites_another():
    history = two_leases().history()
    return replace(history, writes=changed(history.writes, 1, old=0, new=1))


@catches("no lost update", "1 was changed to 2 where 0 was before")
def test_a_row_does_not_begin_at_zero():
    history = two_leases().history()
    return replace(history, writes=without(history.writes, 0))


@catches("no lost update", "1 was changed to 3")
def test_an_update_skips_a_number():
    history = two_leases().history()
    return replace(history, writes=changed(history.writes, 1, new=3))


@catches("no lost update", "had read 0 and overwrote 1")
def test_an_update_overwrites_what_was_not_read():
    history = two_leases().history()
    reads = (Read("register:0", REGISTER, 0),)
    return replace(history, transactions=changed(history.transactions, 1, reads=reads))


def test_the_largest_element_may_be_deleted_and_its_number_used_again():
    world = World()
    a = world.acquire("set:0")
    world.append(a, "set:0")
    world.append(a, "set:0")
    world.append(a, "set:0", gone=3)
    world.look(a, "set:0")
    world.append(a, "set:0")
    assert check(world.history()) == []


@catches("no lost update", "2 was inserted twice")
def test_an_element_is_inserted_twice():
    history = a_set().history()
    return replace(history, writes=changed(history.writes, 2, new=2))


@catches("no lost update", "4 was inserted after 2")
def test_an_element_is_skipped():
    history = a_set().history()
    return replace(history, writes=changed(history.writes, 2, new=4))


@catches("no lost update", "1 was inserted after 3")
def test_a_deleted_element_comes_back():
    world = a_set()
    world.append(world.acquire("set:0"), "set:0")
    history = world.history()
    return replace(history, writes=changed(history.writes, -1, new=1))


@catches("no lost update", "7 was deleted and was not there")
def test_an_element_is_deleted_that_is_not_there():
    history = a_set().history()
    return replace(history, writes=changed(history.writes, -1, gone=7))


@catches("no lost update", "had read 1 and overwrote 2")
def test_an_element_follows_on_what_was_not_read():
    history = a_set().history()
    reads = (Read("set:0", "set:0", 1),)
    return replace(history, transactions=changed(history.transactions, -1, reads=reads))


@catches("final state agrees", "it is 5 at the end; 2 was written last")
def test_a_register_was_changed_outside_the_history():
    world = two_leases()
    world.numbers[REGISTER] = 5
    return world.history()


@catches("final state agrees", "it is 1 at the end; 0 was written last")
def test_a_register_was_changed_that_nobody_wrote():
    world = two_leases()
    world.numbers["register:9/0"] = 1
    return world.history()


@catches("final state agrees", "it is 0 at the end; 2 was written last")
def test_a_register_is_gone():
    world = two_leases()
    del world.numbers[REGISTER]
    return world.history()


@catches("final state agrees", r"its elements differ from what was written: \[\(2, 1\)\]")
def test_an_element_is_gone():
    world = a_set()
    world.elements["set:0"][2] = 0
    return world.history()


@catches("final state agrees", "its elements differ")
def test_an_element_is_there_twice():
    world = a_set()
    world.elements["set:0"][2] = 2
    return world.history()


@catches("final state agrees", "its elements differ")
def test_there_is_a_set_that_nobody_wrote():
    world = a_set()
    world.elements["set:1"] = type(world.elements["set:0"])([1])
    return world.history()


def test_a_set_may_become_empty():
    world = World()
    a = world.acquire("set:0")
    world.append(a, "set:0", gone=1)
    assert world.number("set:0") == 0
    history = world.history()
    rows = {row: number for row, number in history.final.rows.items() if row != "set:0"}
    history = replace(history, final=replace(history.final, rows=rows, elements={}))
    assert check(history) == []

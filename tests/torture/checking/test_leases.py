"""Under which leases it was written."""

from __future__ import annotations

from dataclasses import replace

from fencing.torture.checking import check
from fencing.torture.history import Outcome
from tests.support.broken import catches, changed, without
from tests.support.histories import REGISTER, World, two_leases


@catches("nothing without a lease", "was written without a lease")
def test_a_write_says_no_token():
    history = two_leases().history()
    return replace(history, writes=changed(history.writes, 1, token=None, holder=None))


@catches("nothing without a lease", "was written without a lease")
def test_a_write_says_an_empty_holder():
    history = two_leases().history()
    return replace(history, writes=changed(history.writes, 1, holder=""))


@catches("nothing without a lease", "under token 1, which was not admitted")
def test_a_write_is_before_its_admission():
    history = two_leases().history()
    return replace(history, admissions=changed(history.admissions, 0, seq=2.5))


@catches("nothing without a lease", "under token 2, which was not admitted")
def test_a_write_has_no_admission():
    history = two_leases().history()
    return replace(history, admissions=without(history.admissions, 1))


@catches("nothing without a lease", "under token 1, which was not admitted")
def test_a_write_after_its_fence_was_pruned():
    world = World()
    a = world.acquire("register:0")
    world.prune("register:0")
    world.add(a, REGISTER)
    return world.history()


@catches("nothing without a lease", "a transaction of no worker")
def test_a_write_says_no_transaction():
    history = two_leases().history()
    return replace(history, writes=changed(history.writes, 1, transaction=None))


@catches("nothing without a lease", "a transaction of no worker")
def test_a_write_is_of_nobodys_transaction():
    history = two_leases().history()
    return replace(history, transactions=without(history.transactions, 1))


@catches("nothing without a lease", "not the transaction's lease")
def test_a_write_is_under_another_lease_than_its_transaction():
    history = two_leases().history()
    leases = {"register:0": (7, "another")}
    return replace(history, transactions=changed(history.transactions, 1, leases=leases))


@catches("nothing without a lease", "which was never granted")
def test_a_lease_was_never_granted():
    world = two_leases()
    world.acquisitions["w2.1:1"] = replace(world.acquisitions["w2.1:1"], leases={})
    return world.history()


@catches("nothing without a lease", "which was never granted")
def test_an_admitted_lease_got_another_token():
    world = two_leases()
    granted = world.acquisitions["w2.1:1"]
    lease = replace(granted.leases["register:0"], token=3)
    world.acquisitions["w2.1:1"] = replace(granted, leases={"register:0": lease})
    return world.history()


@catches("nothing without a lease", "it was accepted")
def test_an_unfenced_attempt_is_accepted():
    world = two_leases()
    world.attempt("unfenced", REGISTER, happened=True)
    return world.history()


@catches("nothing without a lease", "it was told that it is committed")
def test_an_unfenced_attempt_is_said_to_be_committed():
    world = two_leases()
    world.attempt("unfenced", REGISTER, outcome=Outcome.COMMITTED, happened=False)
    return world.history()


@catches("nothing leaks", "it was accepted")
def test_a_leaked_lease_is_accepted():
    world = two_leases()
    world.attempt("leaked", REGISTER, happened=True)
    return world.history()


@catches("nothing leaks", "it was told that it is committed")
def test_a_leaked_lease_is_said_to_be_committed():
    world = two_leases()
    world.attempt("leaked", REGISTER, outcome=Outcome.COMMITTED, happened=False)
    return world.history()


def test_an_attempt_that_is_accepted_is_reported_as_such():
    world = two_leases()
    world.attempt("leaked", REGISTER, happened=True)
    history = world.history()
    lease = {"token": 2, "holder": "holder of w2.1:1"}
    history = replace(history, writes=changed(history.writes, -1, **lease))
    assert [each.checker for each in check(history)] == ["nothing leaks"]

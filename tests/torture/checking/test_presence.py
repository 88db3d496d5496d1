"""What was told, and what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencing.torture.checking import check
from fencing.torture.history import Harm, Outcome
from tests.support.broken import catches, changed, find, without
from tests.support.histories import REGISTER, a_transfer, two_leases


@catches("acknowledged writes are there", "nothing of it is there")
def test_an_acknowledged_write_is_gone():
    history = two_leases().history()
    return replace(history, writes=without(history.writes, 1))


@catches("acknowledged writes are there", "account:1 was written 0 times")
def test_half_of_an_acknowledged_transfer_is_gone():
    history = a_transfer().history()
    return replace(history, writes=without(history.writes, 1))


@catches("acknowledged writes are there", "register:0/0 was written 2 times")
def test_an_acknowledged_write_is_there_twice():
    history = two_leases().history()
    again = replace(history.writes[1], seq=100, old=2, new=3)
    return replace(history, writes=(*history.writes, again))


@catches("acknowledged writes are there", "it wrote register:0/1, which it was not to change")
def test_an_acknowledged_transaction_wrote_something_else():
    history = two_leases().history()
    other = replace(history.writes[1], seq=100, old=0, new=1, row="register:0/1")
    return replace(history, writes=(*history.writes, other))


@catches("acknowledged writes are there", "register:0/1 was written 0 times")
def test_an_acknowledged_transaction_did_not_write_all_that_it_said():
    history = two_leases().history()
    changes = (REGISTER, "register:0/1")
    return replace(history, transactions=changed(history.transactions, 1, changes=changes))


@catches("acknowledged writes are there", "it only looked, and wrote")
def test_a_look_wrote():
    history = two_leases().history()
    return replace(history, transactions=changed(history.transactions, 1, kind="look"))


def test_a_database_that_loses_what_it_acknowledged_is_excused():
    history = replace(test_an_acknowledged_write_is_gone.__wrapped__(), loses_acknowledged=True)
    assert find("acknowledged writes are there", history) == []


@pytest.mark.parametrize(
    "outcome", [Outcome.ROLLED_BACK, Outcome.REFUSED, Outcome.CONFLICT, Outcome.FAILED]
)
def test_what_failed_left_nothing(outcome):
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=outcome, happened=True)
    (violation,) = find("what failed left nothing", world.history())
    assert violation.message == f"it was told that it is {outcome}, and is there"


@catches("what failed left nothing", "it was told that it is refused, and is there")
def test_a_refused_write_is_there():
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=Outcome.REFUSED, happened=True)
    return world.history()


@catches("outcomes are true", "found to be committed: nothing of it is there")
def test_an_outcome_is_said_to_be_committed_and_is_not():
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=Outcome.UNKNOWN, resolved="committed")
    return world.history()


@catches("outcomes are true", "found to be rolled back: it is there")
def test_an_outcome_is_said_to_be_rolled_back_and_is_not():
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=Outcome.UNKNOWN, happened=True, resolved="rolled back")
    return world.history()


@catches("outcomes are true", "which is no outcome")
def test_an_outcome_is_nonsense():
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=Outcome.UNKNOWN, resolved="aborted")
    return world.history()


@pytest.mark.parametrize("happened", [False, True])
@pytest.mark.parametrize("resolved", ["unknown", None])
def test_an_outcome_may_stay_unknown(happened, resolved):
    world = two_leases()
    world.fault("proxy", "database", Harm.DATABASE)
    world.add("w2.1:1", REGISTER, outcome=Outcome.UNKNOWN, happened=happened, resolved=resolved)
    assert check(world.history()) == []


@catches("all or none", "its writes are of 2 transactions")
def test_a_transfer_is_done_in_two():
    history = a_transfer().history()
    return replace(history, writes=changed(history.writes, 1, xid=100))


@catches("all or none", "it changed account:0$")
def test_half_a_transfer_is_done():
    world = a_transfer()
    world.transfer("w0.1:0", "account:0", "account:1", outcome=Outcome.CUT_OFF, happened=True)
    history = world.history()
    return replace(history, writes=without(history.writes, -1))


@catches("all or none", "it changed account:0, account:0")
def test_a_transfer_changes_one_account_twice():
    history = a_transfer().history()
    return replace(history, writes=changed(history.writes, 1, row="account:0"))


@catches("all or none", "it added 1 to all accounts together")
def test_a_transfer_adds_more_than_it_takes():
    history = a_transfer().history()
    return replace(history, writes=changed(history.writes, 1, amount=8))


@catches("all or none", "its balance is 94 where 93 is accounted for")
def test_a_balance_is_not_what_was_written():
    world = a_transfer()
    world.balances["account:0"] += 1
    world.balances["account:1"] -= 1
    return world.history()


@catches("all or none", "they hold 201, and began with 200")
def test_money_is_made():
    world = a_transfer()
    world.balances["account:0"] += 1
    return world.history()


@catches("all or none", "its balance is None where 107 is accounted for")
def test_an_account_is_gone():
    world = a_transfer()
    del world.balances["account:1"]
    return world.history()


def test_what_a_transaction_changes_may_not_be_known():
    history = two_leases().history()
    unknown = changed(history.transactions, 1, reads=())
    assert find("acknowledged writes are there", replace(history, transactions=unknown)) == []


def test_a_database_that_loses_what_it_acknowledged_loses_what_was_found_committed():
    history = replace(
        test_an_outcome_is_said_to_be_committed_and_is_not.__wrapped__(), loses_acknowledged=True
    )
    assert find("outcomes are true", history) == []


def test_only_unknown_outcomes_are_found_out():
    world = two_leases()
    world.add("w2.1:1", REGISTER, resolved="rolled back")
    assert find("outcomes are true", world.history()) == []


@catches("all or none", "it changed account:0, account:1, account:0")
def test_a_transfer_changes_one_account_again():
    history = a_transfer().history()
    again = replace(history.writes[0], seq=100, old=1, new=2, amount=0)
    return replace(history, writes=(*history.writes, again))

"""What an inquiry says of a transaction is so, whatever else goes on."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest
from psycopg import IsolationLevel

from fencing.schema.names import claim_item
from tests.schema.sql import ACCOUNT, ALICE, admit, refused, wait_until_blocked

OUTCOME = "SELECT fencing.outcome(%s, %s, 10000)"
SERIALIZATION_FAILURE = "40001"
FORGET = "SELECT fencing.forget_receipts('1 hour')"


@pytest.fixture
def committed_long_ago(accounts):
    """A receipt and its stamp; its transaction began two hours ago, and was committed."""
    receipt = uuid.uuid4()
    admit(accounts, 1)
    with accounts.transaction():
        (stamp,) = accounts.execute(
            "SELECT fencing.enter(%s, NULL, %s)", (claim_item(ACCOUNT, 1, ALICE), receipt)
        ).fetchone()
    accounts.execute("UPDATE fencing.receipt SET written_at = written_at - interval '2 hours'")
    pid, began = stamp.split(".")
    return receipt, f"{pid}.{int(began) - 7_200_000_000}"


def test_a_receipt_that_is_being_forgotten_was_not_rolled_back(
    accounts, connect, committed_long_ago
):
    forgetting, asking = connect(), connect(autocommit=True)
    forgetting.execute(FORGET)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(lambda: asking.execute(OUTCOME, committed_long_ago).fetchone())
        wait_until_blocked(accounts, asking.info.backend_pid)
        forgetting.commit()
        assert answer.result() == ("unknown",)
    assert accounts.execute(OUTCOME, committed_long_ago).fetchone() == ("unknown",)


def test_a_receipt_that_was_not_forgotten_in_the_end_is_found(
    accounts, connect, committed_long_ago
):
    forgetting, asking = connect(), connect(autocommit=True)
    forgetting.execute(FORGET)
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(lambda: asking.execute(OUTCOME, committed_long_ago).fetchone())
        wait_until_blocked(accounts, asking.info.backend_pid)
        forgetting.rollback()
        assert answer.result() == ("committed",)


@pytest.mark.parametrize(
    "level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], ids=lambda lv: lv.name
)
def test_an_inquiry_under_an_old_snapshot_says_nothing_false(
    accounts, connect, committed_long_ago, level
):
    asking = connect()
    asking.isolation_level = level
    asking.execute("SELECT count(*) FROM accounts")
    accounts.execute(FORGET)
    with refused(SERIALIZATION_FAILURE):
        asking.execute(OUTCOME, committed_long_ago)


def test_the_id_of_the_latest_of_several_open_transactions_is_found(accounts, connect):
    accounts.execute("SELECT fencing.incarnation()")
    admit(accounts, 1)
    accounts.execute("SELECT fencing.admit('account:43', 1, 'b', 'test', 0)")
    earlier, later = connect(), connect()
    for connection, item in (
        (earlier, claim_item(ACCOUNT, 1, ALICE)),
        (later, claim_item("account:43", 1, "b")),
    ):
        connection.execute("SELECT fencing.enter(%s, NULL)", (item,))
        connection.execute("SELECT pg_current_xact_id()")
    (stamp,) = later.execute("SELECT fencing.stamp()").fetchone()
    xid, incarnation = accounts.execute("SELECT * FROM fencing.in_flight(%s)", (stamp,)).fetchone()
    assert later.execute("SELECT pg_current_xact_id()::text").fetchone() == (xid,)
    outcome = "SELECT fencing.outcome_of(%s, %s)"
    assert accounts.execute(outcome, (xid, incarnation)).fetchone() == ("in progress",)

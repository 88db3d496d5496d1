"""A transaction block under leases."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing import (
    CommitOutcomeUnknownError,
    FencingUsageError,
    GuardNotInstalledError,
    LeaseExpiredError,
    LeaseLostError,
    StaleFenceError,
    UnfencedWriteError,
    postgres,
)
from fencing.core import message
from fencing.embedded.proxy import TcpProxy
from tests.support.databases import plain_url
from tests.support.interrupting import interrupted_before_line
from tests.support.scripted import expire
from tests.support.sides import SyncSide

if TYPE_CHECKING:
    from tests.support.bank import Bank

DEBIT = "UPDATE accounts SET balance = balance - 10 WHERE id = %s"
PRESENTED = "SELECT coalesce(current_setting('fencing.claim', true), '')"


async def presented(side, connection) -> str:
    return (await side.execute(connection, PRESENTED))[0][0]


@pytest.mark.parametrize("autocommit", [True, False])
async def test_a_holder_writes_and_it_is_committed(
    side, connection, bank: Bank, account, lease, autocommit
) -> None:
    await side.set_autocommit(connection, value=autocommit)
    async with side.block(postgres.transaction(connection, lease)) as transaction:
        assert transaction.connection is connection
        await side.execute(connection, DEBIT, (account,))
        assert bank.balance(account) == 100
    assert bank.balance(account) == 90
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("autocommit", [True, False])
async def test_an_end_that_is_interrupted_leaves_no_transaction_open(
    side, connection, lease, autocommit, monkeypatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    await side.set_autocommit(connection, value=autocommit)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the block is the point
        async with side.block(postgres.transaction(connection, lease)):
            assert connection.autocommit is autocommit
            monkeypatch.setattr(psycopg.Transaction, "__exit__", interrupted)
            monkeypatch.setattr(psycopg.AsyncTransaction, "__aexit__", interrupted)
    assert connection.closed


async def test_what_was_presented_is_gone_in_the_next_transaction(
    side, connection, bank: Bank, account, lease
) -> None:
    async with side.block(postgres.transaction(connection, lease)):
        assert lease.holder in await presented(side, connection)
    async with side.block(connection.transaction()):
        assert await presented(side, connection) == ""
    with pytest.raises(psycopg.Error, match="unfenced"):
        await side.execute(connection, DEBIT, (account,))
    assert bank.balance(account) == 100


async def test_a_body_s_exception_rolls_back_and_wins(
    side, connection, bank: Bank, account, lease
) -> None:
    with pytest.raises(LookupError, match="mine"):  # noqa: PT012 - the block is the point
        async with side.block(postgres.transaction(connection, lease)):
            await side.execute(connection, DEBIT, (account,))
            expire(lease)
            raise LookupError("mine")
    assert bank.balance(account) == 100


async def test_psycopg_s_rollback_ends_the_block_quietly(
    side, connection, bank: Bank, account, lease
) -> None:
    async with side.block(postgres.transaction(connection, lease)) as transaction:
        await side.execute(connection, DEBIT, (account,))
        raise psycopg.Rollback(transaction)
    assert bank.balance(account) == 100


async def test_blocks_of_psycopg_s_inside_it_are_savepoints(
    side, connection, bank: Bank, account, lease
) -> None:
    async with side.block(postgres.transaction(connection, lease)):
        await side.execute(connection, DEBIT, (account,))
        with pytest.raises(psycopg.errors.CheckViolation):
            async with side.block(connection.transaction()):
                await side.execute(
                    connection, "UPDATE accounts SET balance = -5000 WHERE id = %s", (account,)
                )
        async with side.block(connection.transaction()):
            await side.execute(connection, DEBIT, (account,))
    assert bank.balance(account) == 80


async def test_an_overtaken_holder_is_refused_where_it_begins(
    side, connection, bank: Bank, lease, resource
) -> None:
    bank.admit(resource, 2)
    with pytest.raises(StaleFenceError) as refusal:
        async with side.block(postgres.transaction(connection, lease)):
            pytest.fail("it has begun")
    assert (refusal.value.resource, refusal.value.token) == (resource, 1)
    assert refusal.value.current_token == 2
    assert refusal.value.__cause__.sqlstate == "ZF001"
    assert lease.lost
    assert await side.execute(connection, "SELECT 1") == [(1,)]


async def test_nobody_is_admitted_beside_an_open_transaction(
    side, connection, bank: Bank, lease, resource
) -> None:
    async with side.block(postgres.transaction(connection, lease)):
        with pytest.raises(psycopg.Error) as refusal:
            bank.admit(resource, 2)
    assert refusal.value.sqlstate == "ZF005"


async def test_a_write_of_another_row_is_unfenced(
    side, connection, bank: Bank, lease, resource
) -> None:
    other = bank.new_account()
    with pytest.raises(UnfencedWriteError, match=f"presented leases on '{resource}' only") as error:
        async with side.block(postgres.transaction(connection, lease)):
            await side.execute(connection, DEBIT, (other,))
    assert error.value.resource == f"account:{other}"
    assert error.value.table.endswith("accounts")
    assert error.value.__cause__.sqlstate == "ZF002"
    assert bank.balance(other) == 100


async def test_several_leases_are_presented_together(
    side, connection, bank: Bank, guard, account, lease
) -> None:
    other = bank.new_account()
    second = await side.do(guard.acquire(f"account:{other}"))
    async with side.block(postgres.transaction(connection, lease, second)):
        await side.execute(connection, DEBIT, (account,))
        await side.execute(connection, DEBIT, (other,))
    assert (bank.balance(account), bank.balance(other)) == (90, 90)


async def test_nothing_is_begun_under_a_lease_that_is_over(side, connection, bank, lease) -> None:
    expire(lease)
    with pytest.raises(LeaseExpiredError, match="nothing more was sent"):
        async with side.block(postgres.transaction(connection, lease)):
            pytest.fail("it has begun")
    with pytest.raises(LeaseExpiredError):
        await side.do(postgres.enter(connection, lease))
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("ended", ["expired", "released"])
async def test_a_transaction_that_outlived_its_trust_is_not_committed(
    side, connection, bank: Bank, account, lease, ended
) -> None:
    with pytest.raises(LeaseLostError) as error:  # noqa: PT012 - the block is the point
        async with side.block(postgres.transaction(connection, lease)):
            await side.execute(connection, DEBIT, (account,))
            if ended == "expired":
                expire(lease)
            else:
                await side.do(lease.release())
    assert isinstance(error.value, LeaseExpiredError) == (ended == "expired")
    assert "COMMIT was not sent" in error.value.__notes__[0]
    assert bank.balance(account) == 100
    assert await side.execute(connection, "SELECT 1") == [(1,)]


async def test_a_failed_transaction_is_not_taken_for_a_committed_one(
    side, connection, bank: Bank, account, lease
) -> None:
    with pytest.raises(psycopg.errors.InFailedSqlTransaction, match="not raised out"):  # noqa: PT012 - the block is the point
        async with side.block(postgres.transaction(connection, lease)):
            await side.execute(connection, DEBIT, (account,))
            with pytest.raises(psycopg.errors.DivisionByZero):
                await side.execute(connection, "SELECT 1 / 0")
    assert bank.balance(account) == 100
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


async def test_a_refusal_at_commit_is_typed(side, connection, bank: Bank, lease, resource) -> None:
    # A deferred trigger writes another account, whose lease was not presented.
    other = bank.new_account()
    with pytest.raises(UnfencedWriteError) as error:
        async with side.block(postgres.transaction(connection, lease)):
            await side.execute(connection, "INSERT INTO orders (account_id) VALUES (%s)", (other,))
    assert error.value.resource == f"account:{other}"
    assert bank.balance(other) == 100


@pytest.mark.parametrize("overtaken", [True, False])
async def test_a_session_that_was_ended_asks_the_mark_what_it_means(
    side, connection, bank: Bank, account, lease, resource, overtaken
) -> None:
    expected = StaleFenceError if overtaken else LeaseExpiredError
    with pytest.raises(expected) as error:  # noqa: PT012 - the block is the point
        async with side.block(postgres.transaction(connection, lease)):
            await side.execute(connection, DEBIT, (account,))
            bank.kill_backend(connection.info.backend_pid)
            if overtaken:
                bank.admit(resource, 2)
            expire(lease)
            await side.execute(connection, "SELECT 1")
    assert isinstance(error.value.__cause__, psycopg.OperationalError)
    if overtaken:
        assert error.value.current_token == 2
    assert bank.balance(account) == 100


async def test_a_session_that_ended_under_a_good_lease_is_psycopg_s_error(
    side, connection, bank: Bank, lease
) -> None:
    with pytest.raises(psycopg.OperationalError):  # noqa: PT012 - the block is the point
        async with side.block(postgres.transaction(connection, lease)):
            bank.kill_backend(connection.info.backend_pid)
            await side.execute(connection, "SELECT 1")
    assert not lease.lost


async def test_a_session_that_ended_before_commit_was_sent_is_no_unknown_outcome(
    side, connection, bank: Bank, account, lease
) -> None:
    with pytest.raises(psycopg.OperationalError):  # noqa: PT012 - the block is the point
        async with side.block(postgres.transaction(connection, lease)):
            await side.execute(connection, DEBIT, (account,))
            bank.kill_session(connection)
    assert bank.balance(account) == 100


@pytest.mark.parametrize("receipt", [True, False])
async def test_a_commit_without_an_answer_is_unknown_and_a_receipt_makes_it_certain(
    side, bank: Bank, account, lease, receipt
) -> None:
    with TcpProxy.to(bank.plain_url) as proxy:
        connection = await side.connect(proxy.url)
        with pytest.raises(CommitOutcomeUnknownError) as caught:  # noqa: PT012 - the block is the point
            async with side.block(postgres.transaction(connection, lease, receipt=receipt)):
                await side.execute(connection, DEBIT, (account,))
                proxy.swallow_reply(containing=b"COMMIT")
        assert proxy.swallowed.wait(10)
        outcome = await side.outcome(caught.value)
    assert outcome == ("committed" if receipt else "unknown")
    assert caught.value.resources == (lease.resource,)
    assert bank.balance(account) == 90


async def test_a_commit_that_never_arrived_is_found_to_be_rolled_back(
    side, bank: Bank, account, lease
) -> None:
    with TcpProxy.to(bank.plain_url) as proxy:
        connection = await side.connect(proxy.url)
        with pytest.raises(CommitOutcomeUnknownError) as caught:  # noqa: PT012 - the block is the point
            async with side.block(postgres.transaction(connection, lease, receipt=True)):
                await side.execute(connection, DEBIT, (account,))
                proxy.withhold_request(containing=b"COMMIT")
        assert await side.outcome(caught.value, timeout=0.05) == "unknown", "it is still open"
        proxy.drop_withheld()
        assert await side.outcome(caught.value, timeout=30) == "rolled back"
    assert bank.balance(account) == 100


@pytest.mark.parametrize("level", ["READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"])
async def test_a_newer_holder_is_never_overwritten_at_any_isolation_level(
    side, bank: Bank, account, lease, resource, level
) -> None:
    connection = await side.connect(bank.plain_url)
    await side.do(connection.set_isolation_level(psycopg.IsolationLevel[level]))
    async with side.block(postgres.transaction(connection, lease)):
        shown = await side.execute(connection, "SHOW transaction_isolation")
        assert shown[0][0] == level.replace("_", " ").lower()
        await side.execute(connection, DEBIT, (account,))
    bank.admit(resource, 2)
    with pytest.raises(StaleFenceError):
        async with side.block(postgres.transaction(connection, lease)):
            pytest.fail("it has begun")
    assert bank.balance(account) == 90


async def test_its_limits_are_the_trust_that_is_left(side, connection, guard, resource) -> None:
    lease = await side.do(guard.acquire(resource, ttl=20))
    async with side.block(postgres.transaction(connection, lease)):
        rows = await side.execute(
            connection,
            "SELECT EXTRACT(epoch FROM CAST(setting AS interval)) FROM (SELECT "
            "coalesce(current_setting('transaction_timeout', true), "
            "current_setting('idle_in_transaction_session_timeout')) AS setting) AS s",
        )
    assert 15 < rows[0][0] < 20


async def test_a_transaction_that_has_begun_is_refused(side, connection, lease) -> None:
    await side.execute(connection, "SELECT 1")
    with pytest.raises(FencingUsageError, match="in a transaction; a lease"):
        async with side.block(postgres.transaction(connection, lease)):
            pytest.fail("it has begun")


@pytest.mark.parametrize("side", [SyncSide], indirect=True)
async def test_wherever_its_entry_is_interrupted_nothing_of_it_is_left(
    side, bank, guard, account, resource
) -> None:
    lease = await side.do(guard.acquire(resource, ttl=600))
    for number in range(1, 1000):
        connection = await side.connect(bank.plain_url)
        block = postgres.transaction(connection, lease)
        with interrupted_before_line(
            number, sys.modules["fencing.postgres.transaction"], message
        ) as lines:
            try:
                block.__enter__()
            except KeyboardInterrupt:
                pass
            else:
                break
        where = f"interrupted before {lines[-1]!r}"
        if not connection.closed:
            assert connection.info.transaction_status.name == "IDLE", where
            with pytest.raises(psycopg.Error, match="unfenced write"):
                connection.execute(DEBIT, (account,))
            connection.rollback()
            with postgres.transaction(connection, lease):
                connection.execute(DEBIT, (account,))
        connection.close()
    block.__exit__(None, None, None)
    assert number > 40


async def test_a_block_is_used_once(side, connection, lease) -> None:
    block = postgres.transaction(connection, lease)
    async with side.block(block):
        pass
    with pytest.raises(FencingUsageError, match="only once"):
        async with side.block(block):
            pytest.fail("it has begun again")


async def test_arguments_are_checked_before_anything_is_sent(side, connection, lease) -> None:
    with pytest.raises(TypeError, match="at least one lease"):
        postgres.transaction(connection)
    with pytest.raises(TypeError, match="takes leases, not str"):
        postgres.transaction(connection, "account:1")
    with pytest.raises(ValueError, match="two leases on"):
        postgres.transaction(connection, lease, lease)
    with pytest.raises(TypeError, match="a connection of psycopg 3"):
        postgres.transaction("postgresql://", lease)


async def test_a_database_without_the_schema_says_so(side, database: str, lease) -> None:
    connection = await side.connect(plain_url(database))
    with pytest.raises(GuardNotInstalledError, match="install_fencing"):
        async with side.block(postgres.transaction(connection, lease)):
            pytest.fail("it has begun")


async def test_a_lease_that_was_never_admitted_is_refused(
    side, connection, locks, resource
) -> None:
    lease = await side.do(locks.acquire(resource))
    with pytest.raises(UnfencedWriteError) as error:
        async with side.block(postgres.transaction(connection, lease)):
            pytest.fail("it has begun")
    assert error.value.table is None


async def test_the_nonce_is_not_in_the_statement_s_text(side, bank: Bank, lease, resource) -> None:
    # Everybody may read it, and a cursor factory of the user's may merge parameters into it.
    factory = psycopg.ClientCursor if side.Locks.__name__ == "ScriptedLocks" else None
    options = {"cursor_factory": factory or psycopg.AsyncClientCursor}
    connection = await side.connect(bank.plain_url, **options)
    pid = connection.info.backend_pid
    async with side.block(postgres.transaction(connection, lease)):
        query = bank.value("SELECT query FROM pg_stat_activity WHERE pid = %s", pid)
    assert "fencing.enter" in query
    assert lease.holder not in query

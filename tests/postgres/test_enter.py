"""Entry in transactions that somebody else manages, and the translation of their errors."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing import (
    CommitOutcomeUnknownError,
    FencingUsageError,
    LeaseExpiredError,
    StaleFenceError,
    UnfencedWriteError,
    postgres,
)
from fencing.embedded.proxy import TcpProxy
from tests.support.scripted import expire

if TYPE_CHECKING:
    from tests.support.bank import Bank

DEBIT = "UPDATE accounts SET balance = balance - 10 WHERE id = %s"
INTRANS = psycopg.pq.TransactionStatus.INTRANS


async def test_it_begins_a_transaction_as_any_statement_does(
    side, connection, bank: Bank, account, lease
) -> None:
    await side.do(postgres.enter(connection, lease))
    assert connection.info.transaction_status == INTRANS
    await side.execute(connection, DEBIT, (account,))
    await side.do(connection.commit())
    assert bank.balance(account) == 90


async def test_it_joins_a_transaction_in_progress(
    side, connection, bank: Bank, account, lease
) -> None:
    await side.set_autocommit(connection, value=True)
    async with side.block(connection.transaction()):
        await side.do(postgres.enter(connection, lease))
        await side.execute(connection, DEBIT, (account,))
    assert bank.balance(account) == 90


async def test_the_last_entry_counts(side, connection, bank: Bank, guard, account, lease) -> None:
    second = await side.do(guard.acquire(f"account:{bank.new_account()}"))
    await side.do(postgres.enter(connection, lease))
    await side.do(postgres.enter(connection, second))
    with pytest.raises(psycopg.Error, match="unfenced"):
        await side.execute(connection, DEBIT, (account,))


async def test_in_autocommit_mode_it_would_be_over_at_once(side, connection, lease) -> None:
    await side.set_autocommit(connection, value=True)
    with pytest.raises(FencingUsageError, match="autocommit"):
        await side.do(postgres.enter(connection, lease))


async def test_a_failed_transaction_is_rolled_back_first(side, connection, lease) -> None:
    with pytest.raises(psycopg.errors.DivisionByZero):
        await side.execute(connection, "SELECT 1 / 0")
    with pytest.raises(FencingUsageError, match="roll back first"):
        await side.do(postgres.enter(connection, lease))


async def test_in_a_pipeline_the_answer_would_come_too_late(side, connection, lease) -> None:
    async with side.block(connection.pipeline()):
        with pytest.raises(FencingUsageError, match="pipeline mode"):
            await side.do(postgres.enter(connection, lease))


async def test_a_pipeline_may_follow(side, connection, bank: Bank, account, lease) -> None:
    async with (
        side.block(postgres.transaction(connection, lease)),
        side.block(connection.pipeline()),
    ):
        await side.do(connection.execute(DEBIT, (account,)))
        await side.do(connection.execute(DEBIT, (account,)))
    assert bank.balance(account) == 80


async def test_a_two_phase_transaction_is_refused(side, connection, lease) -> None:
    await side.do(connection.tpc_begin(connection.xid(1, "x", "y")))
    with pytest.raises(FencingUsageError, match="two-phase"):
        await side.do(postgres.enter(connection, lease))
    await side.do(connection.tpc_rollback())


async def test_a_closed_connection_is_refused(side, connection, lease) -> None:
    await side.do(connection.close())
    with pytest.raises(FencingUsageError, match="closed"):
        await side.do(postgres.enter(connection, lease))


async def test_a_busy_connection_is_refused(side, connection, lease) -> None:
    cursor = connection.cursor()
    async with side.block(cursor.copy("COPY notes TO STDOUT")):
        with pytest.raises(FencingUsageError, match="busy"):
            await side.do(postgres.enter(connection, lease))


async def test_a_read_only_transaction_may_enter_and_not_write(
    side, connection, bank: Bank, account, lease
) -> None:
    await side.do(connection.set_read_only(True))
    await side.do(postgres.enter(connection, lease))
    assert await side.execute(connection, "SELECT 1") == [(1,)]
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        await side.execute(connection, DEBIT, (account,))
    assert bank.balance(account) == 100


async def test_an_overtaken_holder_is_refused(
    side, connection, bank: Bank, lease, resource
) -> None:
    bank.admit(resource, 2)
    with pytest.raises(StaleFenceError) as refusal:
        await side.do(postgres.enter(connection, lease))
    assert refusal.value.current_token == 2
    assert isinstance(refusal.value.__cause__, psycopg.Error)
    # As after any failed statement, the transaction is the caller's to roll back.
    await side.do(connection.rollback())
    assert await side.execute(connection, "SELECT 1") == [(1,)]


async def test_one_that_waits_for_an_admission_waits_no_longer_than_its_trust(
    side, connection, bank: Bank, guard, resource
) -> None:
    lease = await side.do(guard.acquire(resource, ttl=0.4))
    with bank.admitting(resource, 2), pytest.raises(LeaseExpiredError):
        await side.do(postgres.enter(connection, lease))


class TestErrorsTranslated:
    async def test_a_refused_write_is_typed(self, side, connection, account) -> None:
        with pytest.raises(UnfencedWriteError, match="has presented no lease") as error:
            async with side.block(postgres.errors_translated(connection)):
                await side.execute(connection, DEBIT, (account,))
        assert error.value.resource == f"account:{account}"
        assert error.value.__cause__.sqlstate == "ZF002"

    async def test_a_refusal_that_a_framework_has_wrapped_is_typed(
        self, side, connection, account
    ) -> None:
        class WrappedError(Exception):
            pass

        with pytest.raises(UnfencedWriteError) as error:  # noqa: PT012 - the block is the point
            async with side.block(postgres.errors_translated(connection)):
                try:
                    await side.execute(connection, DEBIT, (account,))
                except psycopg.Error as refusal:
                    raise WrappedError from refusal
        assert isinstance(error.value.__cause__, WrappedError)

    async def test_everything_else_passes(self, side, connection) -> None:
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with side.block(postgres.errors_translated(connection)):
                await side.execute(connection, "SELECT 1 / 0")
        with pytest.raises(LookupError, match="mine"):
            async with side.block(postgres.errors_translated(connection)):
                raise LookupError("mine")

    @pytest.mark.parametrize("overtaken", [True, False])
    async def test_a_session_that_was_ended_asks_the_mark(
        self, side, connection, bank: Bank, lease, resource, overtaken
    ) -> None:
        with pytest.raises(StaleFenceError if overtaken else LeaseExpiredError):  # noqa: PT012 - the block is the point
            async with side.block(postgres.errors_translated(connection)):
                await side.do(postgres.enter(connection, lease))
                bank.kill_backend(connection.info.backend_pid)
                if overtaken:
                    bank.admit(resource, 2)
                expire(lease)
                await side.execute(connection, "SELECT 1")

    async def test_the_leases_of_the_transaction_before_say_nothing_about_the_next(
        self, side, connection, bank: Bank, lease
    ) -> None:
        await side.do(postgres.enter(connection, lease))
        await side.do(connection.commit())
        expire(lease)
        with pytest.raises(psycopg.OperationalError):  # noqa: PT012 - the block is the point
            async with side.block(postgres.errors_translated(connection)):
                await side.execute(connection, "SELECT 1")
                bank.kill_backend(connection.info.backend_pid)
                await side.execute(connection, "SELECT 1")

    async def test_set_transaction_after_entry_is_told_why(self, side, connection, lease) -> None:
        with pytest.raises(psycopg.errors.ActiveSqlTransaction) as error:
            async with side.block(postgres.transaction(connection, lease)):
                await side.execute(connection, "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        assert "connection.isolation_level" in error.value.__notes__[0]


@pytest.mark.parametrize("how", ["commit()", "block", "COMMIT"])
@pytest.mark.parametrize("overtaken", [True, False])
async def test_an_entered_transaction_whose_commit_has_no_answer_is_not_called_refused(
    side, bank: Bank, lease, account, resource, how, overtaken
) -> None:
    with TcpProxy.to(bank.plain_url) as proxy:
        connection = await side.connect(proxy.url)
        with pytest.raises(CommitOutcomeUnknownError) as caught:  # noqa: PT012 - the block is the point
            async with side.block(postgres.errors_translated(connection)), AsyncExitStack() as end:
                if overtaken:
                    end.callback(bank.admit, resource, 2)
                end.callback(expire, lease)
                if how == "block":
                    await end.enter_async_context(side.block(connection.transaction()))
                await side.do(postgres.enter(connection, lease))
                await side.execute(connection, DEBIT, (account,))
                proxy.swallow_reply(containing=b"COMMIT")
                if how == "commit()":
                    await side.do(connection.commit())
                if how == "COMMIT":
                    await side.execute(connection, "COMMIT")
        assert isinstance(caught.value.__cause__, psycopg.OperationalError)
        assert await side.outcome(caught.value) == "unknown"
    assert bank.balance(account) == 90


async def test_a_lost_savepoint_is_no_lost_commit(side, bank: Bank, lease) -> None:
    with TcpProxy.to(bank.plain_url) as proxy:
        connection = await side.connect(proxy.url)
        with pytest.raises(psycopg.OperationalError):  # noqa: PT012 - the block is the point
            async with side.block(postgres.errors_translated(connection)):
                await side.do(postgres.enter(connection, lease))
                async with side.block(connection.transaction()):
                    proxy.swallow_reply(containing=b"RELEASE")

"""What asyncpg does differently: it keeps codes and states to itself, and caches statements."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from fencing import (
    AsyncGuard,
    CommitOutcomeUnknownError,
    LeaseExpiredError,
    LeaseLostError,
    StaleFenceError,
    UnfencedWriteError,
)
from fencing.clock import now
from fencing.hooks.database import Database
from fencing.schema.refusals import Refusal
from tests.support.scripted import AsyncScriptedLocks, expire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from sqlalchemy.ext.asyncio import AsyncEngine

    from tests.support.bank import Bank

PID = text("SELECT pg_backend_pid()")
DEBIT = text("UPDATE accounts SET balance = balance - 10 WHERE id = :id")
ONE = text("SELECT 1")


@pytest.fixture
async def engine(bank: Bank) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(make_url(bank.url).set(drivername="postgresql+asyncpg"))
    yield engine
    await Database.of(engine.sync_engine).admissions.aclose()
    await engine.dispose()


@pytest.fixture
def guard(async_locks: AsyncScriptedLocks, engine: AsyncEngine) -> AsyncGuard:
    return AsyncGuard(async_locks, engine)


async def test_a_refusal_has_its_facts_and_its_cause(
    guard: AsyncGuard, engine, bank: Bank, account: int, resource: str
) -> None:
    bank.admit(resource, 7)
    async with AsyncSession(engine) as session:
        with pytest.raises(UnfencedWriteError) as refusal:
            await session.execute(DEBIT, {"id": account})
    assert (refusal.value.table, refusal.value.resource) == ("public.accounts", resource)
    assert isinstance(refusal.value.__cause__.__cause__, asyncpg.PostgresError)
    lease = await guard.acquire(resource)
    assert lease.token == 8, "the refused admission told the mark, which healed the counter"


async def test_a_token_of_eight_bytes_is_admitted_and_presented(
    engine, bank: Bank, account: int, resource: str
) -> None:
    async with (
        AsyncGuard(AsyncScriptedLocks(2**39), engine) as guard,
        guard.acquire(resource),
        AsyncSession(engine) as session,
    ):
        await session.execute(DEBIT, {"id": account})
        await session.commit()
    assert bank.mark(resource)[0] == 2**39
    assert bank.balance(account) == 90


@pytest.mark.parametrize("overtaken", [False, True])
@pytest.mark.parametrize("act", ["statement", "commit"])
async def test_a_session_that_its_limit_has_ended_while_it_was_idle_is_expired_or_stale(
    guard, engine, bank: Bank, account: int, resource: str, act: str, overtaken
) -> None:
    async with guard.acquire(resource, ttl=1.0) as lease, AsyncSession(engine) as session:
        await session.execute(DEBIT, {"id": account})
        await asyncio.to_thread(bank.wait_until_gone, await session.scalar(PID))
        # The server's word counts here, not our own clock's.
        lease.trusted_until += 10
        if overtaken:
            bank.admit(resource, 2)
        with pytest.raises(StaleFenceError if overtaken else LeaseExpiredError) as error:
            await (session.commit() if act == "commit" else session.execute(ONE))
        if not overtaken:
            assert "the server has ended it" in str(error.value)
        await session.rollback()
    assert bank.balance(account) == 100


async def test_a_lost_connection_is_read_by_what_the_server_said_before(
    guard, engine, bank: Bank, resource: str
) -> None:
    async with guard.acquire(resource), AsyncSession(engine) as session:
        bank.kill_backend(await session.scalar(PID))
        with pytest.raises(DBAPIError) as error:
            await session.execute(ONE)
    assert Refusal.read(error.value.orig).sqlstate in {"57P01", ""}


async def test_a_refusal_that_was_swallowed_is_raised_at_commit(
    guard, engine, bank: Bank, account: int, resource: str
) -> None:
    other = bank.new_account()
    async with guard.acquire(resource), AsyncSession(engine) as session:
        await session.execute(DEBIT, {"id": account})
        with pytest.raises(UnfencedWriteError):
            await session.execute(DEBIT, {"id": other})
        with pytest.raises(UnfencedWriteError) as error:
            await session.commit()
        assert "COMMIT was not sent" in error.value.__notes__[-1]
    assert bank.balance(account) == 100


async def test_a_refusal_inside_a_savepoint_does_not_stop_the_commit(
    guard, engine, bank: Bank, account: int, resource: str
) -> None:
    other = bank.new_account()
    async with guard.acquire(resource), AsyncSession(engine) as session:
        await session.execute(DEBIT, {"id": account})
        with pytest.raises(UnfencedWriteError):
            async with session.begin_nested():
                await session.execute(DEBIT, {"id": other})
        await session.commit()
    assert bank.balance(account) == 90


@pytest.mark.parametrize(
    "options", [{"isolation_level": "AUTOCOMMIT"}, {"postgresql_readonly": True}]
)
async def test_nothing_is_presented_where_nothing_can_be(
    guard, engine, account: int, resource: str, options
) -> None:
    async with guard.acquire(resource), engine.connect() as connection:
        await connection.execution_options(**options)
        claim = await connection.scalar(text("SELECT current_setting('fencing.claim', true)"))
        assert not claim
        with pytest.raises((UnfencedWriteError, DBAPIError)):
            await connection.execute(DEBIT, {"id": account})


async def test_cached_statements_survive_a_migration(own_bank: Bank) -> None:
    engine = create_async_engine(make_url(own_bank.url).set(drivername="postgresql+asyncpg"))
    try:
        async with AsyncGuard(AsyncScriptedLocks(), engine) as own_guard:
            for _ in range(2):
                async with own_guard.acquire("account:1"), AsyncSession(engine) as session:
                    await session.execute(DEBIT, {"id": 1})
                    await session.commit()
                own_bank.observer.execute("ALTER TABLE accounts ADD COLUMN note text")
                own_bank.observer.execute("ALTER TABLE accounts DROP COLUMN note")
                own_bank.observer.execute("SELECT fencing.refresh_guards()")
    finally:
        await engine.dispose()
    assert own_bank.balance(1) == 80


async def test_an_unexpected_error_at_entry_shows_no_nonce(own_bank: Bank) -> None:
    engine = create_async_engine(make_url(own_bank.url).set(drivername="postgresql+asyncpg"))
    async with (
        AsyncGuard(AsyncScriptedLocks(), engine) as own_guard,
        own_guard.acquire("account:1") as lease,
    ):
        own_bank.observer.execute("ALTER TABLE fencing.fence RENAME COLUMN holder TO gone")
        with pytest.raises(DBAPIError) as caught:
            async with AsyncSession(engine) as session:
                await session.execute(ONE)
    await engine.dispose()
    assert "fencing.enter" in str(caught.value)
    assert lease.holder not in str(caught.value)


async def test_a_cancelled_statement_leaves_nothing_in_the_pool(
    guard, engine, bank: Bank, account: int, resource: str
) -> None:
    async def hang() -> None:
        async with guard.acquire(resource), AsyncSession(engine) as session:
            await session.execute(DEBIT, {"id": account})
            started.set()
            await session.execute(text("SELECT pg_sleep(60)"))

    started = asyncio.Event()
    hanging = asyncio.ensure_future(hang())
    await started.wait()
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging
    async with (
        guard.acquire(resource, blocking_timeout=5) as lease,
        AsyncSession(engine) as session,
    ):
        await session.execute(DEBIT, {"id": account})
        await session.commit()
    assert not lease.lost
    assert bank.balance(account) == 90


async def test_an_expired_lease_is_not_even_asked(guard, engine, bank, account, resource) -> None:
    async with guard.acquire(resource) as lease, AsyncSession(engine) as session:
        await session.execute(DEBIT, {"id": account})
        expire(lease)
        with pytest.raises(LeaseExpiredError):
            await session.commit()
    assert bank.balance(account) == 100


@pytest.mark.parametrize("turns", range(5))
async def test_a_session_whose_end_has_been_noticed_by_halves_was_ended_before_the_commit(
    guard, engine, bank: Bank, account: int, resource: str, turns: int
) -> None:
    """Its last words and its end arrive in turns of the event loop; what comes first varies."""
    async with guard.acquire(resource) as lease, AsyncSession(engine) as session:
        await session.execute(DEBIT, {"id": account})
        bank.kill_backend(await session.scalar(PID))
        bank.admit(resource, 2)
        lease.trusted_until = now() + 0.04  # still trusted, and no more than the limits' slack
        for _ in range(turns):
            await asyncio.sleep(0)
        # Within the first turn COMMIT is sent all the same.
        with pytest.raises(
            LeaseLostError if turns > 1 else (LeaseLostError, CommitOutcomeUnknownError)
        ):
            await session.commit()
        await session.rollback()
        with guard.suspended():
            assert await session.scalar(ONE) == 1
    assert bank.balance(account) == 100

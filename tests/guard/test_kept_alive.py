"""Work that takes longer than the ttl, under leases that are kept alive, on real servers."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    AsyncRedisLockService,
    FencingUsageError,
    Guard,
    LeaseLostError,
    LockNotAcquiredError,
    RedisLockService,
    StaleFenceError,
)
from fencing.locks.redis.scripts import keys_of
from tests.support.bank import BOB, Account, Bank, enter_by_hand

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

TTL = 1.5
ADMITTED_AT = "SELECT admitted_at FROM fencing.fence WHERE resource = %s"
LIMITS = text(
    "SELECT name, CAST(setting AS bigint) FROM pg_settings WHERE name IN "
    "('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')"
)


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture
def guard(locks: RedisLockService, engine: Engine) -> Iterator[Guard]:
    with Guard(locks, engine) as guard:
        yield guard


@pytest.fixture
async def async_guard(
    redis_url: str, redis_namespace: str, async_engine: AsyncEngine
) -> AsyncIterator[AsyncGuard]:
    locks = AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace)
    async with AsyncGuard(locks, async_engine) as guard:
        yield guard


@pytest.fixture
def drop(redis_client, redis_namespace: str, resource: str) -> Callable[[], None]:
    """Takes the lock from its holder behind his back."""
    return lambda: redis_client.delete(keys_of(redis_namespace, resource)[0])


class TestTransactions:
    def test_one_may_last_three_times_the_ttl(
        self, guard: Guard, engine: Engine, account: int, resource: str, bank: Bank
    ) -> None:
        with guard.acquire(resource, ttl=TTL, keepalive=True), Session(engine) as session:
            session.get_one(Account, account).balance -= 10
            session.flush()
            time.sleep(3 * TTL)
            session.commit()
        assert bank.balance(account) == 90

    async def test_one_may_last_three_times_the_ttl_in_asyncio(
        self,
        async_guard: AsyncGuard,
        async_engine: AsyncEngine,
        account: int,
        resource: str,
        bank: Bank,
    ) -> None:
        async with (
            async_guard.acquire(resource, ttl=TTL, keepalive=True),
            AsyncSession(async_engine) as session,
        ):
            (await session.get_one(Account, account)).balance -= 10
            await session.flush()
            await asyncio.sleep(3 * TTL)
            await session.commit()
        assert bank.balance(account) == 90

    def test_without_keepalive_it_is_cut(
        self, guard: Guard, engine: Engine, account: int, resource: str, bank: Bank
    ) -> None:
        with guard.acquire(resource, ttl=TTL), Session(engine) as session:
            session.get_one(Account, account).balance -= 10
            session.flush()
            time.sleep(1.2 * TTL)
            with pytest.raises(LeaseLostError):
                session.commit()
        assert bank.balance(account) == 100

    def test_its_limit_is_the_max_lifetime(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with (
            guard.acquire(resource, ttl=5, keepalive=True, max_lifetime=60),
            engine.connect() as connection,
        ):
            limits = {value for _, value in connection.execute(LIMITS).all() if value}
            assert limits
            assert all(10_000 < value <= 60_000 for value in limits)

    def test_without_a_max_lifetime_it_has_none(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource, keepalive=True), engine.connect() as connection:
            assert {value for _, value in connection.execute(LIMITS).all()} == {0}

    def test_the_shortest_of_its_leases_limits_it(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with (
            guard.acquire(resource, keepalive=True),
            guard.acquire(f"{resource}:short", ttl=20),
            engine.connect() as connection,
        ):
            limits = {value for _, value in connection.execute(LIMITS).all() if value}
            assert limits
            assert all(0 < value <= 20_000 for value in limits)

    def test_it_is_refused_once_the_lease_is_lost(
        self, guard: Guard, engine: Engine, account: int, resource: str, bank: Bank, drop
    ) -> None:
        lost = threading.Event()
        with (
            guard.acquire(resource, ttl=TTL, keepalive=True, on_lost=lambda _: lost.set()),
            Session(engine) as session,
        ):
            session.get_one(Account, account).balance -= 10
            session.flush()
            drop()
            assert lost.wait(20)
            with pytest.raises(LeaseLostError):
                session.commit()
        assert bank.balance(account) == 100

    def test_a_successor_overtakes_a_holder_who_goes_on_renewing(
        self, guard: Guard, engine: Engine, account: int, resource: str, drop
    ) -> None:
        with guard.acquire(resource, keepalive=True) as lease:
            drop()
            thread = threading.Thread(target=lambda: guard.acquire(resource).release())
            thread.start()
            thread.join(20)
            with Session(engine) as session, pytest.raises(StaleFenceError):
                session.get_one(Account, account)
            assert lease.lost


class TestLoss:
    async def test_the_task_is_cancelled(
        self, async_guard: AsyncGuard, resource: str, drop
    ) -> None:
        async def work() -> None:
            async with async_guard.acquire(resource, ttl=TTL, keepalive=True, cancel_on_loss=True):
                drop()
                await asyncio.sleep(60)

        with pytest.raises(LeaseLostError):
            await work()

    async def test_it_is_told_in_asyncio(self, async_guard: AsyncGuard, resource: str) -> None:
        told = asyncio.Event()
        async with async_guard.acquire(resource, ttl=0.5, on_lost=lambda _: told.set()):
            async with asyncio.timeout(20):
                await told.wait()

    def test_of_a_lease_that_was_not_handed_out_nobody_is_told(
        self, guard: Guard, resource: str, bank: Bank
    ) -> None:
        calls = []
        bank.admit(resource, 1)
        with psycopg.connect(bank.plain_url) as blocker:
            enter_by_hand(blocker, resource, 1, BOB)
            with pytest.raises(LockNotAcquiredError):
                guard.acquire(resource, ttl=0.5, on_lost=calls.append)
        time.sleep(0.6)
        assert calls == []

    def test_an_admission_that_waits_goes_on_while_its_lease_is_kept_alive(
        self, guard: Guard, resource: str, bank: Bank
    ) -> None:
        bank.admit(resource, 1)
        with psycopg.connect(bank.plain_url) as blocker:
            enter_by_hand(blocker, resource, 1, BOB)
            timer = threading.Timer(2 * TTL, blocker.rollback)
            timer.start()
            guard.acquire(resource, ttl=TTL, keepalive=True).release()
            timer.join()


class TestReEntry:
    def test_an_inner_block_is_neither_locked_nor_admitted_again(
        self, guard: Guard, engine: Engine, account: int, resource: str, bank: Bank
    ) -> None:
        with guard.acquire(resource) as outer:
            before = bank.value(ADMITTED_AT, resource)
            with guard.acquire(resource, reentrant=True) as inner, Session(engine) as session:
                assert inner is outer
                session.get_one(Account, account).balance -= 10
                session.commit()
            assert bank.value(ADMITTED_AT, resource) == before
            with Session(engine) as session:  # the outer block goes on
                session.get_one(Account, account).balance -= 10
                session.commit()
        assert outer.released
        assert bank.balance(account) == 80

    def test_the_end_of_an_inner_block_complains_of_no_open_transaction(
        self, guard: Guard, engine: Engine, resource: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            with guard.acquire(resource, reentrant=True):
                pass
            connection.rollback()
        assert not caplog.records

    def test_in_a_suspended_block_it_is_presented_again(
        self, guard: Guard, engine: Engine, account: int, resource: str, bank: Bank
    ) -> None:
        with (
            guard.acquire(resource),
            guard.suspended(),
            guard.acquire(resource, reentrant=True),
            Session(engine) as session,
        ):
            session.get_one(Account, account).balance -= 10
            session.commit()
        assert bank.balance(account) == 90

    def test_a_decorated_function_can_call_itself(self, guard: Guard) -> None:
        @guard.holding("account:{number}", reentrant=True)
        def count_down(number: int, left: int) -> int:
            return left and count_down(number, left - 1)

        assert count_down(7, 3) == 0
        assert guard.try_acquire("account:7") is not None

    def test_what_would_end_the_outer_block_is_refused(self, guard: Guard, resource: str) -> None:
        with guard.acquire(resource) as outer:
            with pytest.raises(FencingUsageError, match="no max_lifetime=60"):
                guard.acquire(resource, reentrant=True, keepalive=True, max_lifetime=60)
            assert not outer.kept

    def test_without_the_wish_it_is_an_error(self, guard: Guard, resource: str) -> None:
        with guard.acquire(resource):
            with pytest.raises(LockNotAcquiredError, match="reentrant=True"):
                guard.acquire(resource)
            assert guard.try_acquire(resource) is None
            again = guard.try_acquire(resource, reentrant=True)
            assert again is not None
            again.release()

    async def test_in_asyncio(
        self,
        async_guard: AsyncGuard,
        async_engine: AsyncEngine,
        account: int,
        resource: str,
        bank: Bank,
    ) -> None:
        async with async_guard.acquire(resource) as outer:
            async with (
                async_guard.acquire(resource, reentrant=True) as inner,
                AsyncSession(async_engine) as session,
            ):
                assert inner is outer
                (await session.get_one(Account, account)).balance -= 10
                await session.commit()
            other = asyncio.create_task(async_guard.try_acquire(resource, reentrant=True))
            assert await other is None
        assert outer.released
        assert bank.balance(account) == 90


class TestDropped:
    """Nobody can release it any more, so it must not be renewed until a collector comes by.

    It is to be renewed so late that its keeper does not hold it in that moment.
    """

    def test_a_guarded_lease_is_gone_at_once(self, guard: Guard, resource: str) -> None:
        gc.collect()
        gc.disable()
        try:
            lease = guard.acquire(resource, ttl=3600, keepalive=True)
            gone = weakref.ref(lease)
            del lease
            assert gone() is None
        finally:
            gc.enable()

    async def test_in_asyncio_too(self, async_guard: AsyncGuard, resource: str) -> None:
        gc.collect()
        gc.disable()
        try:
            lease = await async_guard.acquire(resource, ttl=3600, keepalive=True)
            gone = weakref.ref(lease)
            del lease
            assert gone() is None
        finally:
            gc.enable()

"""A lock's lease in a guard and in ``fence()``: the database refuses who was overtaken."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
from redis.exceptions import LockError
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    AsyncRedisLockService,
    Guard,
    LeaseExpiredError,
    LockServiceError,
    RedisLockService,
    StaleFenceError,
    UnfencedWriteError,
    fence,
)
from fencing.compat.redis import AsyncFencedLock, FencedLock
from tests.support.bank import BareAccount

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fencing import AsyncLease, Lease
    from tests.support.bank import Bank


class AccountLock(FencedLock):
    """Its name ends in the number of an account."""

    @property
    def resource(self) -> str:
        return f"account:{super().resource.rpartition(':')[2]}"


class AsyncAccountLock(AsyncFencedLock):
    """Its name ends in the number of an account."""

    @property
    def resource(self) -> str:
        return f"account:{super().resource.rpartition(':')[2]}"


@pytest.fixture
def lock_name(redis_namespace: str, account: int) -> str:
    return f"{redis_namespace}:{account}"


@pytest.fixture
def guard(redis_client: redis.Redis, redis_namespace: str, engine: Engine) -> Iterator[Guard]:
    with Guard(RedisLockService(redis_client, namespace=redis_namespace), engine) as guard:
        yield guard


@pytest.fixture
def lock(redis_client: redis.Redis, lock_name: str) -> Iterator[Any]:
    return redis_client.lock(lock_name, timeout=60, lock_class=AccountLock)


def balance(bank: Bank, account: int) -> Any:
    return bank.value("SELECT balance FROM accounts WHERE id = %s", account)


def debit(engine: Engine, lease: Lease, account: int) -> None:
    with Session(engine) as session, fence(session, lease):
        session.get_one(BareAccount, account).balance -= 10
        session.commit()


def test_what_holds_the_lock_may_write(
    lock: Any, guard: Guard, engine: Engine, bank: Bank, account: int
) -> None:
    for left in (90, 80):
        with lock:
            guard.admit(lock.lease)
            debit(engine, lock.lease, account)
        assert balance(bank, account) == left


def test_who_was_overtaken_is_refused(
    lock: Any,
    guard: Guard,
    engine: Engine,
    bank: Bank,
    account: int,
    redis_client: redis.Redis,
    lock_name: str,
) -> None:
    lock.acquire()
    guard.admit(lock.lease)
    redis_client.delete(lock_name)  # as when it expires in a pause that our clock did not see
    with redis_client.lock(lock_name, timeout=60, lock_class=AccountLock) as successor:
        guard.admit(successor.lease)
        debit(engine, successor.lease, account)
        with pytest.raises(StaleFenceError):
            debit(engine, lock.lease, account)
    assert balance(bank, account) == 90


def test_who_has_run_out_sends_nothing(
    redis_client: redis.Redis, lock_name: str, guard: Guard, engine: Engine, account: int
) -> None:
    with redis_client.lock(lock_name, timeout=60, lock_class=AccountLock) as lock:
        guard.admit(lock.lease)
        lock.lease.trusted_until -= 60
        with pytest.raises(LeaseExpiredError):
            debit(engine, lock.lease, account)


def test_a_lease_that_was_not_admitted_is_refused(
    lock: Any, guard: Guard, engine: Engine, account: int
) -> None:
    assert guard
    with lock, pytest.raises(UnfencedWriteError):
        debit(engine, lock.lease, account)


def test_a_lock_of_redis_pys_own_may_not_write(
    redis_client: redis.Redis, lock_name: str, guard: Guard, engine: Engine, account: int
) -> None:
    assert guard
    with redis_client.lock(lock_name, timeout=60), engine.begin() as connection:
        with pytest.raises(UnfencedWriteError):
            connection.execute(
                text("UPDATE accounts SET balance = 0 WHERE id = :id"), {"id": account}
            )
        connection.rollback()


def test_a_redis_that_has_lost_its_tokens_is_raised(
    lock: Any,
    guard: Guard,
    engine: Engine,
    bank: Bank,
    account: int,
    redis_client: redis.Redis,
    lock_name: str,
) -> None:
    for _ in range(3):
        with lock:
            guard.admit(lock.lease)
    redis_client.delete(f"fencing:redis-py:{{{lock_name}}}")
    with lock:
        guard.admit(lock.lease)
        assert lock.lease.token == 4
        debit(engine, lock.lease, account)
    assert balance(bank, account) == 90


def test_one_that_cannot_be_raised_any_more_says_why(
    lock: Any, guard: Guard, bank: Bank, redis_client: redis.Redis, lock_name: str
) -> None:
    with lock:
        lease = lock.lease
        bank.admit(lease.resource, 5)
        fence_key = f"fencing:redis-py:{{{lock_name}}}"
        redis_client.hset(fence_key, "token", "x")
        with pytest.raises(LockServiceError, match="not a number") as caught:
            guard.admit(lease)
        assert caught.value.resource == lease.resource
        redis_client.hset(fence_key, "token", 1)
    with contextlib.suppress(LockError), lock:  # at its end it is not ours
        lease = lock.lease
        redis_client.delete(lock_name)  # as when it expires in a pause that our clock did not see
        with pytest.raises(StaleFenceError):
            guard.admit(lease)
        assert lease.lost


def test_a_guard_may_be_nested_in_it(
    lock: Any, guard: Guard, engine: Engine, bank: Bank, account: int
) -> None:
    for _ in range(3):
        with lock:
            guard.admit(lock.lease)
    with lock, guard.acquire(f"account:{account}", ttl=60), Session(engine) as session:
        session.get_one(BareAccount, account).balance -= 10
        session.commit()
    assert balance(bank, account) == 90


class TestAsync:
    @pytest.fixture
    async def client(self, redis_url: str) -> AsyncIterator[Any]:
        async with redis.asyncio.Redis.from_url(redis_url) as client:
            yield client

    @pytest.fixture
    async def async_guard(
        self, client: Any, redis_namespace: str, async_engine: AsyncEngine
    ) -> AsyncIterator[AsyncGuard]:
        locks = AsyncRedisLockService(client, namespace=redis_namespace)
        async with AsyncGuard(locks, async_engine) as guard:
            yield guard

    async def test_the_same(
        self,
        client: Any,
        async_guard: AsyncGuard,
        async_engine: AsyncEngine,
        bank: Bank,
        account: int,
        lock_name: str,
    ) -> None:
        async def debit(lease: AsyncLease) -> None:
            async with AsyncSession(async_engine) as session:
                with fence(session, lease):
                    (await session.get_one(BareAccount, account)).balance -= 10
                    await session.commit()

        lock = client.lock(lock_name, timeout=60, lock_class=AsyncAccountLock)
        await lock.acquire()
        await async_guard.admit(lock.lease)
        await debit(lock.lease)
        await client.delete(lock_name)
        async with client.lock(lock_name, timeout=60, lock_class=AsyncAccountLock) as successor:
            await async_guard.admit(successor.lease)
            with pytest.raises(StaleFenceError):
                await debit(lock.lease)
            await debit(successor.lease)
        assert balance(bank, account) == 80

"""Transactions under leases that are kept alive, on bare connections and a real lock service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from fencing import (
    AsyncRedisLockService,
    FencingUsageError,
    LeaseLostError,
    RedisLockService,
    postgres,
)
from fencing.clock import now
from fencing.locks.redis.scripts import keys_of
from tests.support.sides import SyncSide

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.bank import Bank

TTL = 1.5
DEBIT = "UPDATE accounts SET balance = balance - 10 WHERE id = %s"
LIMITS = (
    "SELECT CAST(setting AS bigint) FROM pg_settings WHERE setting <> '0' AND name IN "
    "('statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')"
)


@pytest.fixture
async def locks(side: Any, redis_url: str, redis_namespace: str) -> AsyncIterator[Any]:
    if isinstance(side, SyncSide):
        with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            yield locks
    else:
        async with AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            yield locks


async def test_a_transaction_may_last_three_times_the_ttl(
    side, guard, connection, bank: Bank, account, resource
) -> None:
    lease = await side.do(guard.acquire(resource, ttl=TTL, keepalive=True))
    async with side.block(lease), side.block(postgres.transaction(connection, lease)):
        await side.execute(connection, DEBIT, (account,))
        await asyncio.sleep(3 * TTL)
        await side.execute(connection, DEBIT, (account,))
    assert bank.balance(account) == 80


async def test_its_limit_is_the_max_lifetime(side, guard, connection, resource) -> None:
    lease = await side.do(guard.acquire(resource, ttl=5, keepalive=True, max_lifetime=60))
    async with side.block(lease), side.block(postgres.transaction(connection, lease)):
        limits = [limit for (limit,) in await side.execute(connection, LIMITS)]
        assert limits
        assert all(10_000 < limit <= 60_000 for limit in limits)


async def test_it_is_refused_once_the_lease_is_lost(
    side, guard, connection, bank: Bank, account, resource, redis_client, redis_namespace
) -> None:
    lease = await side.do(guard.acquire(resource, ttl=TTL, keepalive=True))

    until = now() + 20

    async def work() -> None:
        async with side.block(lease), side.block(postgres.transaction(connection, lease)):
            await side.execute(connection, DEBIT, (account,))
            redis_client.delete(keys_of(redis_namespace, resource)[0])
            while not lease.lost:
                assert now() < until
                await asyncio.sleep(0.02)

    with pytest.raises(LeaseLostError):
        await work()
    assert bank.balance(account) == 100


async def test_re_entry_is_the_same_lease(side, guard, resource) -> None:
    outer = await side.do(guard.acquire(resource))
    async with side.block(outer):
        with pytest.raises(FencingUsageError, match="no max_lifetime=60"):
            await side.do(guard.acquire(resource, reentrant=True, keepalive=True, max_lifetime=60))
        async with side.block(await side.do(guard.acquire(resource, reentrant=True))) as inner:
            assert inner is outer
        assert not outer.released
    assert outer.released

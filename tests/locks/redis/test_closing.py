"""A service that is closed beside calls: they come to their end, and nothing is left open."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio

from fencing.clock import now
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.connections import close_idle, connection_of
from fencing.locks.redis.subscribing import AsyncSubscriber
from fencing.locks.redis.waiters import AsyncBox
from fencing.locks.redis.waiting import LOST
from tests.contract.facade import ThreadedLocks, in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencing.embedded.proxy import TcpProxy


async def close(locks: Any) -> None:
    if isinstance(locks, ThreadedLocks):
        await in_thread(locks.locks.close)
    else:
        await locks.aclose()


def stack_of(locks: Any) -> Any:
    service = locks.locks if isinstance(locks, ThreadedLocks) else locks
    return service._redis._sibling._way._stack


def still_open(locks: Any) -> int:
    return sum(connection.is_open() for connection in stack_of(locks).connections())


async def test_a_call_in_between_is_answered_on_its_connection_which_is_closed_then(
    locks: Any, proxy: TcpProxy
) -> None:
    await asyncio.gather(*[locks.try_acquire(f"r{n}", ttl=60) for n in range(3)])
    proxy.reset_counts()
    proxy.hold()
    asked = asyncio.ensure_future(locks.locked("r0"))
    assert await asyncio.to_thread(proxy.held.wait, 20)
    await close(locks)
    assert still_open(locks) == 1
    proxy.release()
    assert await asked
    assert still_open(locks) == 0
    assert proxy.connections == 0  # nothing was asked again
    assert await locks.locked("r1")
    assert still_open(locks) == 1


@pytest.fixture(params=["sync", "async"])
async def few(
    request: pytest.FixtureRequest, redis_url: str, redis_namespace: str
) -> AsyncIterator[Any]:
    """A service with fewer connections than callers."""
    settings: dict[str, Any] = {"namespace": redis_namespace, "max_connections": 2}
    if request.param == "sync":
        with RedisLockService.from_url(redis_url, **settings) as service:
            yield ThreadedLocks(service)
    else:
        async with AsyncRedisLockService.from_url(redis_url, **settings) as locks:
            yield locks


async def test_many_calls_beside_many_closings_all_succeed(few: Any) -> None:
    async def work(number: int) -> None:
        for _ in range(40):
            async with few.acquire(f"r{number}", ttl=60):
                pass

    working = asyncio.gather(*map(work, range(4)))
    while not working.done():
        await close(few)
        await asyncio.sleep(0)
    await working
    await close(few)
    assert still_open(few) == 0
    assert len(stack_of(few)._idle) == len(stack_of(few).connections())


async def test_one_that_comes_back_behind_the_closing_is_closed_by_who_brings_it(
    locks: Any,
) -> None:
    stack = stack_of(locks)
    if not isinstance(locks, ThreadedLocks):
        pytest.skip("in a loop nothing comes in between")
    connection = stack.take(now() + 20)
    await close(locks)
    stack.give_back(connection)
    assert not connection.is_open()


async def test_who_listens_no_more_before_he_has_begun_tells_his_audience() -> None:
    async def connect(_: float) -> Any:
        raise AssertionError("it was stopped before")

    subscriber: AsyncSubscriber[AsyncBox] = AsyncSubscriber(connect, "channel", print)
    box = AsyncBox()
    subscriber.audience.add("holder", box)
    await subscriber.stop()
    assert subscriber.audience.over
    assert await box.get(20.0) is LOST


async def test_of_a_pool_only_what_nobody_uses_is_closed(redis_url: str) -> None:
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(redis.asyncio.Redis.from_url(redis_url))
        pool: Any = client.connection_pool
        used, idle = await connection_of(pool), await connection_of(pool)
        await pool.release(idle)
        await close_idle(pool)
        assert used.is_connected
        assert not idle.is_connected
        await pool.release(used)
        assert await client.ping()

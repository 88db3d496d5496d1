"""Which leases are in force where, under asyncio: tasks, to_thread, async generators."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession

from fencing import AsyncGuard, LeaseLostError, LockNotAcquiredError, UnfencedWriteError, fence
from tests.support.bank import Bank, presented

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def seen(engine: AsyncEngine) -> dict[str, int]:
    async with engine.connect() as connection:
        return await connection.run_sync(presented)


async def test_a_transaction_in_the_block_presents_the_lease(
    async_guard: AsyncGuard, async_engine, resource
) -> None:
    async with async_guard.acquire(resource):
        assert await seen(async_engine) == {resource: 1}
        async with AsyncSession(async_engine) as session:
            assert await session.run_sync(presented) == {resource: 1}
    assert await seen(async_engine) == {}


async def test_an_awaited_lease_is_ambient_in_its_block_only(
    async_guard: AsyncGuard, async_engine, resource
) -> None:
    lease = await async_guard.acquire(resource)
    assert await seen(async_engine) == {}
    async with lease:
        assert await seen(async_engine) == {resource: 1}
    assert await seen(async_engine) == {}


async def test_a_task_started_in_the_block_presents_it_until_the_block_ends(
    async_guard: AsyncGuard, async_engine, resource
) -> None:
    inside, ended, found = asyncio.Event(), asyncio.Event(), []

    async def child() -> None:
        found.append(await seen(async_engine))
        inside.set()
        await ended.wait()
        found.append(await seen(async_engine))

    async with async_guard.acquire(resource):
        task = asyncio.create_task(child())
        await inside.wait()
    ended.set()
    await task
    assert found == [{resource: 1}, {}]


async def test_a_child_tasks_open_transaction_is_dead_after_the_block(
    async_guard: AsyncGuard, async_engine, bank: Bank, account: int, resource: str
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def child() -> None:
        async with AsyncSession(async_engine) as session:
            await session.execute(text(f"UPDATE accounts SET balance = 0 WHERE id = {account}"))
            begun.set()
            await ended.wait()
            with pytest.raises(LeaseLostError):
                await session.commit()

    async with async_guard.acquire(resource):
        task = asyncio.create_task(child())
        await begun.wait()
    ended.set()
    await task
    assert bank.balance(account) == 100


async def test_a_task_started_before_the_block_presents_nothing(
    async_guard: AsyncGuard, async_engine, resource
) -> None:
    acquired = asyncio.Event()

    async def other() -> dict[str, int]:
        await acquired.wait()
        return await seen(async_engine)

    task = asyncio.create_task(other())
    async with async_guard.acquire(resource):
        acquired.set()
        assert await task == {}


async def test_a_lease_that_a_child_task_acquires_is_not_its_parents(
    async_guard: AsyncGuard, async_engine, resource
) -> None:
    async def child() -> dict[str, int]:
        async with async_guard.acquire(f"{resource}:child"):
            found.append(await seen(async_engine))
            acquired.set()
            await looked.wait()

    acquired, looked, found = asyncio.Event(), asyncio.Event(), []
    async with async_guard.acquire(resource):
        task = asyncio.create_task(child())
        await acquired.wait()
        assert await seen(async_engine) == {resource: 1}
        looked.set()
        await task
    assert found == [{resource: 1, f"{resource}:child": 2}]


async def test_to_thread_takes_the_lease_along_and_no_longer_than_the_block(
    async_guard: AsyncGuard, engine, async_engine, resource
) -> None:
    from fencing.hooks.ambient import presented_leases

    async with async_guard.acquire(resource) as lease:
        database = async_guard.databases[0]
        assert await asyncio.to_thread(presented_leases, database) == (lease,)
    assert await asyncio.to_thread(presented_leases, database) == ()


async def test_the_same_resource_twice_in_one_task_is_raised_at_once(
    async_guard: AsyncGuard, async_locks, resource
) -> None:
    async with async_guard.acquire(resource):
        with pytest.raises(LockNotAcquiredError, match="wait for itself"):
            await async_guard.acquire(resource)
        assert await async_guard.try_acquire(resource) is None
        assert async_locks.count("acquire") == 1
        other = await asyncio.create_task(_acquire(async_guard, resource))
        assert other == 2


async def _acquire(guard: AsyncGuard, resource: str) -> int:
    return (await guard.acquire(resource)).token


async def test_an_async_generator_closed_by_another_task_ends_its_block(
    async_guard: AsyncGuard, async_engine, resource
) -> None:
    async def batches() -> AsyncIterator[dict[str, int]]:
        async with async_guard.acquire(resource) as lease:
            leases.append(lease)
            while True:
                yield await seen(async_engine)

    leases: list = []
    generator = batches()
    assert await anext(generator) == {resource: 1}
    await asyncio.create_task(generator.aclose())
    assert leases[0].released
    assert await seen(async_engine) == {}


async def test_a_helper_made_with_asynccontextmanager_works(
    async_guard: AsyncGuard, async_engine, resource
) -> None:
    @contextlib.asynccontextmanager
    async def unit_of_work() -> AsyncIterator[AsyncSession]:
        async with async_guard.acquire(resource), AsyncSession(async_engine) as session:
            yield session

    async with unit_of_work() as session:
        assert await session.run_sync(presented) == {resource: 1}
    assert await seen(async_engine) == {}


async def test_suspended_is_a_plain_with(
    async_guard: AsyncGuard, async_engine, account: int, resource
) -> None:
    async with async_guard.acquire(resource), AsyncSession(async_engine) as session:
        with async_guard.suspended():
            assert await session.run_sync(presented) == {}
            with pytest.raises(UnfencedWriteError, match="suspended"):
                await session.execute(text(f"UPDATE accounts SET balance = 0 WHERE id = {account}"))
            await session.rollback()
        assert await session.run_sync(presented) == {resource: 1}


@pytest.mark.parametrize("kind", ["session", "connection"])
async def test_an_explicit_fence_serves_async_targets(
    async_guard: AsyncGuard, async_engine, resource, kind: str
) -> None:
    lease = await async_guard.acquire(resource)
    target: AsyncSession | AsyncConnection
    target = AsyncSession(async_engine) if kind == "session" else async_engine.connect()
    async with target:
        with fence(target, lease):
            assert await target.run_sync(presented) == {resource: 1}
            await target.rollback()
            assert await target.run_sync(presented) == {resource: 1}
            await target.rollback()
        assert await target.run_sync(presented) == {}


async def test_a_cancelled_block_gives_its_lease_back(
    async_guard: AsyncGuard, async_engine, async_locks, resource
) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with async_guard.acquire(resource):
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert async_locks.count("release") == 1

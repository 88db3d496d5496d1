"""Without faults nothing is refused, nothing is tried twice, and everything adds up."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import AsyncGuard, AsyncRedisLockService, Guard, RedisLockService
from tests.support.bank import Account, Bank
from tests.support.holders import increments
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

TIMES = 12


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


def add_one(guard: Guard, engine: Engine, account: int) -> None:
    for _ in range(TIMES):
        with guard.acquire(f"account:{account}") as lease, Session(engine) as session:
            session.get_one(Account, account).balance += 1
            session.commit()
        assert not lease.lost


def test_processes_and_threads_refuse_each_other_nothing(
    guard: Guard, engine: Engine, bank: Bank, account, resource, redis_url, redis_namespace, caplog
) -> None:
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        children = [
            stack.enter_context(
                ChildProcess(increments, redis_url, redis_namespace, bank.url, account, TIMES)
            )
            for _ in range(2)
        ]
        for child in children:
            child.wait_for("ready")
        for child in children:
            child.tell("go")
        threads = [pool.submit(add_one, guard, engine, account) for _ in range(2)]
        for thread in threads:
            thread.result(60)
        for child in children:
            child.wait_for("finished")
            child.check()
    assert bank.balance(account) == 100 + 4 * TIMES
    assert bank.mark(resource)[0] == 4 * TIMES, "one token an acquisition"
    assert not caplog.records


async def test_tasks_refuse_each_other_nothing(
    async_engine: AsyncEngine, bank: Bank, account, resource, redis_url, redis_namespace, caplog
) -> None:
    async def add_one(guard: AsyncGuard) -> None:
        for _ in range(TIMES):
            async with guard.acquire(resource), AsyncSession(async_engine) as session:
                (await session.get_one(Account, account)).balance += 1
                await session.commit()

    async with AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        guard = AsyncGuard(locks, async_engine)
        await asyncio.gather(*(add_one(guard) for _ in range(4)))
    assert bank.balance(account) == 100 + 4 * TIMES
    assert bank.mark(resource)[0] == 4 * TIMES
    assert not caplog.records


def test_several_resources_taken_in_any_order_do_not_deadlock(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    other = bank.new_account()
    names = [resource, f"account:{other}"]
    held = [guard.acquire(name) for name in names]

    def transfer(order: int) -> None:
        from fencing import fence

        for _ in range(TIMES):
            with Session(engine) as session, fence(session, *held[::order]):
                for each in (account, other)[::order]:
                    session.get_one(Account, each, with_for_update=True)
                    break
                session.commit()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(transfer, order) for order in (1, -1, 1, -1)]:
            done.result(60)

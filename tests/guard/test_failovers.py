"""A failover loses the last acquisitions: the guard heals the counter, no stale write lands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    AsyncRedisLockService,
    Guard,
    RedisLockService,
    StaleFenceError,
    fence,
)
from tests.support.bank import Account, Bank, resource_of_account
from tests.support.failing import STAGES, ByCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from tests.support.failing import _Stage


@pytest.fixture(params=STAGES, ids=lambda stage: stage.__name__)
def stage(request: pytest.FixtureRequest) -> Iterator[_Stage]:
    with request.param() as stage:
        yield stage


@pytest.fixture
def account(stage: _Stage, bank: Bank) -> int:
    """An account whose lock is where the primary fails."""
    while True:
        account = bank.new_account()
        if not isinstance(stage, ByCluster) or stage.has(resource_of_account(account)):
            return account


def test_what_a_failover_has_lost(
    stage: _Stage, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    with (
        stage.client("sync") as client,
        Guard(RedisLockService(client, replicas=1), engine) as durable,
        Guard(RedisLockService(client), engine) as guard,
        Session(engine) as session,
    ):
        with durable.acquire(resource, ttl=60):
            pass  # replicas know of this one, and of none that follows
        stage.cut_off()
        with guard.acquire(resource, ttl=60):
            pass
        lost = guard.locks.acquire(resource, ttl=60)
        guard.admit(lost)
        write(session, account, 10, lost)
        assert bank.mark(resource) == (lost.token, lost.holder)

        stage.replace("killed")
        # The new primary has neither the lock nor its token, and issues one again.
        state = guard.locks.inspect(resource)
        assert not state.held
        assert state.counter < lost.token
        with guard.acquire(resource, ttl=60, blocking_timeout=30) as later:
            assert later.token > lost.token
            assert bank.mark(resource) == (later.token, later.holder)
            assert not lost.expired
            with pytest.raises(StaleFenceError):
                write(session, account, 20, lost)
            session.rollback()
            write(session, account, 30, later)
        assert bank.balance(account) == 30
        with guard.acquire(resource, ttl=60) as last:
            assert last.token > later.token


def write(session: Session, account: int, balance: int, lease: Any) -> None:
    with fence(session, lease):
        session.get_one(Account, account).balance = balance
        session.commit()


@pytest.mark.parametrize("async_engine", ["asyncpg"], indirect=True)
async def test_what_a_failover_has_lost_in_asyncio(
    stage: _Stage, async_engine: AsyncEngine, bank: Bank, account: int, resource: str
) -> None:
    async with (
        stage.client("async") as client,
        AsyncGuard(AsyncRedisLockService(client, replicas=1), async_engine) as durable,
        AsyncGuard(AsyncRedisLockService(client), async_engine) as guard,
        AsyncSession(async_engine) as session,
    ):
        async with durable.acquire(resource, ttl=60):
            pass
        await asyncio.to_thread(stage.cut_off)
        async with guard.acquire(resource, ttl=60):
            pass
        lost = await guard.locks.acquire(resource, ttl=60)
        await guard.admit(lost)
        await write_async(session, account, 10, lost)

        await asyncio.to_thread(stage.replace, "killed")
        async with guard.acquire(resource, ttl=60, blocking_timeout=30) as later:
            assert later.token > lost.token
            assert not lost.expired
            with pytest.raises(StaleFenceError):
                await write_async(session, account, 20, lost)
            await session.rollback()
            await write_async(session, account, 30, later)
        assert bank.balance(account) == 30


async def write_async(session: AsyncSession, account: int, balance: int, lease: Any) -> None:
    with fence(session, lease):
        (await session.get_one(Account, account)).balance = balance
        await session.commit()

"""A lease that runs out by our own clock, in the middle of a transaction."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, LeaseExpiredError
from tests.support.bank import Account, Bank
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks, expire

PID = text("SELECT pg_backend_pid()")


def test_a_lease_that_ran_out_before_commit_is_not_committed(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    with guard.acquire(resource) as lease, Session(engine) as session:
        session.get_one(Account, account).balance = 0
        session.flush()
        expire(lease)
        with pytest.raises(LeaseExpiredError, match="nothing more was sent"):
            session.commit()
        session.rollback()
    assert bank.balance(account) == 100


def test_a_session_whose_lease_ran_out_is_ended_so_that_its_successor_need_not_wait(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    with guard.acquire(resource) as lease, Session(engine) as session:
        pid = session.scalar(PID)
        session.get_one(Account, account).balance = 0
        session.flush()
        expire(lease)
        with pytest.raises(LeaseExpiredError):
            session.execute(text("SELECT 1"))
        # Before any rollback: the connection was given up, not left open.
        bank.wait_until_gone(pid)
        assert Guard(ScriptedLocks(2), engine).acquire(resource).admitted
        session.rollback()


@pytest.mark.parametrize("act", ["statement", "commit"])
async def test_so_it_is_under_asyncio(
    async_guard: AsyncGuard, async_engine: AsyncEngine, bank: Bank, account, resource, act: str
) -> None:
    async with async_guard.acquire(resource) as lease, AsyncSession(async_engine) as session:
        pid = await session.scalar(PID)
        (await session.get_one(Account, account)).balance = 0
        await session.flush()
        expire(lease)
        with pytest.raises(LeaseExpiredError):
            await (session.commit() if act == "commit" else session.execute(text("SELECT 1")))
        bank.wait_until_gone(pid)
        successor = AsyncGuard(AsyncScriptedLocks(2), async_engine)
        assert (await successor.acquire(resource)).admitted
        await session.rollback()
    assert bank.balance(account) == 100


@pytest.mark.parametrize("act", ["statement", "commit"])
def test_renewing_a_lease_does_not_extend_a_transaction(
    guard: Guard, engine: Engine, bank: Bank, resource: str, act: str
) -> None:
    with guard.acquire(resource, ttl=1.0) as lease, engine.connect() as connection:
        pid = connection.scalar(PID)
        lease.renew(ttl=60)
        if act == "commit":
            bank.wait_until_gone(pid)
        sleep = text("SELECT pg_sleep(30)")
        with pytest.raises(LeaseExpiredError, match="renewed in a transaction"):
            connection.commit() if act == "commit" else connection.execute(sleep)
        assert not lease.lost
        connection.rollback()
        connection.execute(text("SELECT 1"))

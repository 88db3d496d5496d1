# ruff: noqa: PT012 - what is raised by several statements is the point
"""What a body raises is what its caller gets, also when the session under it has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from tests.support.bank import Account, Bank
from tests.support.scripted import expire

if TYPE_CHECKING:
    from fencing import AsyncGuard, Guard

PID = text("SELECT pg_backend_pid()")


class BodyError(Exception):
    """Raised by a body."""


@pytest.mark.parametrize("failure", [BodyError, KeyboardInterrupt, asyncio.CancelledError])
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_body_wins_over_the_end_of_its_session(
    guard: Guard, engine: Engine, bank: Bank, resource: str, kind: str, failure: type
) -> None:
    begin = Session(engine) if kind == "session" else engine.connect()
    with pytest.raises(failure), guard.acquire(resource, ttl=1.0), begin as it, it.begin():
        bank.wait_until_gone(it.scalar(PID))
        raise failure


@pytest.mark.parametrize("over", ["expired", "released"])
@pytest.mark.parametrize("kind", ["session", "connection"])
def test_a_body_wins_inside_a_savepoint_too(
    guard: Guard, engine: Engine, account: int, bank: Bank, resource: str, kind: str, over: str
) -> None:
    lease = guard.acquire(resource)
    begin = Session(engine) if kind == "session" else engine.connect()
    with pytest.raises(BodyError), begin as it, lease, it.begin(), it.begin_nested():
        it.execute(text("UPDATE accounts SET balance = 0 WHERE id = :id"), {"id": account})
        if over == "expired":
            expire(lease)
        else:
            lease.release()
        raise BodyError
    assert bank.balance(account) == 100


async def test_a_cancelled_task_is_cancelled(
    async_guard: AsyncGuard, async_engine: AsyncEngine, bank: Bank, resource: str
) -> None:
    began = asyncio.Event()
    pids: list[int] = []

    async def work() -> None:
        async with async_guard.acquire(resource, ttl=1.0), AsyncSession(async_engine) as session:
            pids.append(await session.scalar(PID))
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await began.wait()
    await asyncio.to_thread(bank.wait_until_gone, pids[0])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


def test_the_session_can_be_used_again(
    guard: Guard, engine: Engine, account: int, bank: Bank, resource: str
) -> None:
    with Session(engine) as session:
        with pytest.raises(BodyError), guard.acquire(resource, ttl=1.0), session.begin():
            bank.wait_until_gone(session.scalar(PID))
            raise BodyError
        with guard.acquire(resource), session.begin():
            session.get_one(Account, account).balance = 7
    assert bank.balance(account) == 7

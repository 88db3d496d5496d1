"""A transaction that is left open when its block ends is found before anybody waits for it."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, LeaseLostError, LockNotAcquiredError, fence
from tests.support.bank import Account, Bank
from tests.support.scripted import ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PID = text("SELECT pg_backend_pid()")


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        yield session


@pytest.fixture
def left_open(guard: Guard, session: Session, account: int, resource: str) -> int:
    """The backend of a transaction that has outlived its block: `commit(); print(balance)`."""
    with guard.acquire(resource):
        row = session.get_one(Account, account)
        row.balance -= 10
        session.commit()
        assert row.balance == 90  # expire_on_commit: begins another transaction
        return session.scalar(PID)


class TestLeftOpen:
    def test_it_is_logged_by_name_at_the_end_of_the_block(
        self, guard: Guard, session: Session, resource: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with guard.acquire(resource):
            pid = session.scalar(PID)
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert record.name == "fencing"
        assert f"PostgreSQL backend {pid}" in record.getMessage()
        assert resource in record.getMessage()

    def test_what_was_ended_in_the_block_is_not_logged(
        self, guard: Guard, session: Session, resource: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with guard.acquire(resource):
            session.scalar(PID)
            session.commit()
            session.scalar(PID)
            session.rollback()
        assert not caplog.records

    def test_the_next_acquire_in_this_thread_is_raised_at_once(
        self, guard: Guard, locks: ScriptedLocks, resource: str, left_open: int
    ) -> None:
        asked = locks.count("acquire")
        with pytest.raises(LockNotAcquiredError, match=f"backend {left_open}") as refusal:
            guard.acquire(resource)
        assert refusal.value.blocked_by == (left_open,)
        assert refusal.value.resource == resource
        assert locks.count("acquire") == asked, "the lock was not even asked for"

    def test_so_it_is_in_another_thread(self, guard: Guard, resource: str, left_open: int) -> None:
        with ThreadPoolExecutor() as pool:
            acquiring = pool.submit(guard.acquire, resource)
            with pytest.raises(LockNotAcquiredError) as refusal:
                acquiring.result(20)
        assert refusal.value.blocked_by == (left_open,)

    @pytest.mark.usefixtures("left_open")
    def test_try_acquire_answers_none(self, guard: Guard, resource: str) -> None:
        assert guard.try_acquire(resource) is None

    @pytest.mark.usefixtures("left_open")
    def test_another_resource_is_not_concerned(self, guard: Guard, resource: str) -> None:
        assert guard.acquire(f"other:{resource}").admitted

    @pytest.mark.usefixtures("guard", "left_open")
    @pytest.mark.parametrize("act", ["SELECT 1", "UPDATE accounts SET balance = 0 WHERE id = :id"])
    def test_a_statement_in_it_is_refused(self, session: Session, account: int, act: str) -> None:
        with pytest.raises(LeaseLostError, match="was released"):
            session.execute(text(act), {"id": account})

    def test_its_commit_is_refused(
        self, guard: Guard, session: Session, bank: Bank, account: int, resource: str
    ) -> None:
        with guard.acquire(resource):
            session.get_one(Account, account).balance = 0
            session.flush()
        with pytest.raises(LeaseLostError, match="was released"):
            session.commit()
        session.rollback()
        assert bank.balance(account) == 100

    @pytest.mark.usefixtures("left_open")
    def test_once_it_has_ended_the_lease_can_be_had(
        self, guard: Guard, session: Session, resource: str
    ) -> None:
        session.rollback()
        with guard.acquire(resource) as lease:
            assert lease.token == 2
            assert session.execute(text("SELECT 1")).scalar_one() == 1

    @pytest.mark.usefixtures("left_open")
    def test_a_closed_session_leaves_nothing_open(
        self, guard: Guard, session: Session, resource: str
    ) -> None:
        session.close()
        assert guard.acquire(resource).token == 2


def test_a_connection_that_is_kept_without_a_transaction_is_not_left_open(
    guard: Guard, engine: Engine, resource: str, caplog: pytest.LogCaptureFixture
) -> None:
    with engine.connect() as connection:
        with guard.acquire(resource):
            connection.execute(PID)
            connection.commit()
        assert not caplog.records
        assert guard.acquire(resource).token == 2


def test_an_open_transaction_of_this_thread_under_a_live_lease_is_found_too(
    guard: Guard, engine: Engine, session: Session, resource: str
) -> None:
    lease = guard.acquire(resource)
    with fence(session, lease):
        pid = session.scalar(PID)
        with pytest.raises(LockNotAcquiredError) as refusal:
            Guard(ScriptedLocks(2), engine).acquire(resource)
    assert refusal.value.blocked_by == (pid,)


def in_two_threads_of_one_ident(first: Callable[[], None], second: Callable[[], None]) -> None:
    """Run two functions, each in a thread of its own, of which the second reuses an ident."""
    idents: list[int] = []
    errors: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        if idents and threading.get_ident() != idents[0]:
            return
        idents.append(threading.get_ident())
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)

    for function in (first, *[second] * 1000):
        thread = threading.Thread(target=run, args=(function,))
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        if len(idents) == 2:
            return
    pytest.skip("this platform does not reuse the ident of a thread")


def test_a_thread_that_has_ended_is_not_taken_for_another_of_its_ident(
    guard: Guard, resource: str
) -> None:
    leases = []
    in_two_threads_of_one_ident(
        lambda: leases.append(guard.acquire(resource)),
        lambda: leases.append(guard.acquire(resource)),
    )
    assert [lease.token for lease in leases] == [1, 2]


def test_nor_is_its_open_transaction(
    guard: Guard, engine: Engine, session: Session, resource: str
) -> None:
    refusals = []

    def begin() -> None:
        with fence(session, guard.acquire(resource)):
            session.scalar(PID)

    def acquire() -> None:
        with pytest.raises(LockNotAcquiredError) as refusal:
            Guard(ScriptedLocks(2), engine).acquire(resource, blocking=False)
        refusals.append(str(refusal.value))

    in_two_threads_of_one_ident(begin, acquire)
    assert "blocked by open transactions" in refusals[0], "it was asked, and not raised at once"


def test_one_of_another_thread_under_a_live_lease_is_waited_for(
    guard: Guard, engine: Engine, session: Session, bank: Bank, resource: str
) -> None:
    lease = guard.acquire(resource)
    with fence(session, lease), ThreadPoolExecutor() as pool:
        session.scalar(PID)
        successor = pool.submit(Guard(ScriptedLocks(2), engine).acquire, resource)
        bank.wait_until_queued()
        session.commit()
        assert successor.result(20).token == 2


async def test_under_asyncio_it_is_logged_raised_and_refused(
    async_guard: AsyncGuard, async_engine: AsyncEngine, bank, account, resource, caplog
) -> None:
    async with AsyncSession(async_engine) as session:
        async with async_guard.acquire(resource):
            await session.execute(
                text("UPDATE accounts SET balance = 0 WHERE id = :id"), {"id": account}
            )
            pid = await session.scalar(PID)
        assert f"PostgreSQL backend {pid}" in caplog.records[-1].getMessage()
        for acquiring in (async_guard.acquire(resource), in_task(async_guard, resource)):
            with pytest.raises(LockNotAcquiredError) as refusal:
                await acquiring
            assert refusal.value.blocked_by == (pid,)
        assert await async_guard.try_acquire(resource) is None
        with pytest.raises(LeaseLostError):
            await session.execute(text("SELECT 1"))
        with pytest.raises(LeaseLostError):
            await session.commit()
        await session.rollback()
        async with async_guard.acquire(resource) as lease:
            assert lease.token == 2
    assert bank.balance(account) == 100


async def in_task(guard: AsyncGuard, resource: str) -> None:
    await asyncio.create_task(guard.try_acquire(resource))
    await asyncio.create_task(_acquire(guard, resource))


async def _acquire(guard: AsyncGuard, resource: str) -> None:
    await guard.acquire(resource)


async def test_an_open_transaction_of_another_task_under_a_live_lease_is_waited_for(
    async_guard: AsyncGuard, async_engine: AsyncEngine, bank: Bank, resource: str
) -> None:
    from tests.support.scripted import AsyncScriptedLocks

    lease = await async_guard.acquire(resource)
    async with AsyncSession(async_engine) as session:
        with fence(session, lease):
            await session.scalar(PID)
            successor = asyncio.create_task(
                _acquire(AsyncGuard(AsyncScriptedLocks(2), async_engine), resource)
            )
            await asyncio.to_thread(bank.wait_until_queued)
            await session.commit()
            await successor
    assert bank.mark(resource)[0] == 2

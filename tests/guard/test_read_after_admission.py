"""The first read after an admission sees every earlier commit, so no update is ever lost."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DataError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, Lease, LeaseLostError, StaleFenceError, fence
from tests.support.bank import Account, Bank
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks
from tests.support.writes import WRITES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.banking import MakeEngine
    from tests.support.writes import Write

LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]
SNAPSHOT_LEVELS = LEVELS[1:]


@pytest.fixture(params=LEVELS)
def engine(request: pytest.FixtureRequest, make_engine: MakeEngine) -> Engine:
    return make_engine(isolation_level=request.param)


@pytest.fixture
def in_thread() -> Iterator[Callable[..., Future]]:
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def read(session: Session, account: int) -> int:
    balance = session.execute(text("SELECT balance FROM accounts WHERE id = :id"), {"id": account})
    return balance.scalar_one()


def write(session: Session, account: int, balance: int) -> None:
    session.execute(
        text("UPDATE accounts SET balance = :balance WHERE id = :id"),
        {"id": account, "balance": balance},
    )


def add_under_lease(guard: Guard, engine: Engine, account: int, amount: int) -> int:
    """Read, add, write, commit; returns what was read."""
    with guard.acquire(f"account:{account}"), Session(engine) as session:
        row = session.get_one(Account, account)
        seen = row.balance
        row.balance = seen + amount
        session.commit()
    return seen


def test_an_acquisition_is_complete_only_when_its_token_is_committed(
    guard: Guard, engine: Engine, bank: Bank, resource: str
) -> None:
    lease = guard.acquire(resource)
    assert bank.mark(resource) == (lease.token, lease.holder)
    assert lease.admitted


def test_a_successor_waits_for_an_open_write_and_reads_it(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str, in_thread
) -> None:
    with guard.acquire(resource), Session(engine) as a:
        assert read(a, account) == 100
        write(a, account, 101)
        b = in_thread(add_under_lease, guard, engine, account, 10)
        bank.wait_until_queued()
        assert not b.done()
        a.commit()
        assert b.result(20) == 101
    assert bank.balance(account) == 111


def test_a_predecessor_cannot_commit_between_its_successors_read_and_write(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    a = guard.acquire(resource)
    b = Guard(ScriptedLocks(2), engine).acquire(resource)
    with Session(engine) as first, Session(engine) as second, fence(second, b):
        seen = read(second, account)
        with fence(first, a), pytest.raises(StaleFenceError):
            write(first, account, 101)
        write(second, account, seen + 10)
        second.commit()
    assert bank.balance(account) == 110


def test_what_a_predecessor_commits_before_the_admission_is_read(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    a = guard.acquire(resource)

    class GrantsBeforeTheLastWrite(ScriptedLocks):
        def acquire(self, *args, **kwargs):
            lease = super().acquire(*args, **kwargs)
            with Session(engine) as session, fence(session, a):
                write(session, account, 101)
                session.commit()
            return lease

    b = Guard(GrantsBeforeTheLastWrite(2), engine)
    assert add_under_lease(b, engine, account, 10) == 101
    assert bank.balance(account) == 111


def test_a_rolled_back_transaction_does_not_take_the_mark_back(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    a = guard.acquire(resource)
    b = Guard(ScriptedLocks(2), engine).acquire(resource)
    with Session(engine) as first, Session(engine) as second, fence(second, b):
        assert read(second, account) == 100
        second.rollback()
        with fence(first, a), pytest.raises(StaleFenceError):
            write(first, account, 101)
        assert bank.mark(resource) == (2, b.holder)
        write(second, account, read(second, account) + 10)
        second.commit()
    assert bank.balance(account) == 110


def test_a_failed_first_transaction_does_not_take_the_mark_back(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    with guard.acquire(resource), Session(engine) as session:
        with pytest.raises(DataError):
            session.execute(text("SELECT 1 / 0"))
        session.rollback()
        assert bank.mark(resource)[0] == 1


class TestAnEntryThatWaitedForAnAdmission:
    """Its snapshot is older than the admission: the zombie that no entry can recognise."""

    @pytest.fixture(params=SNAPSHOT_LEVELS)
    def engine(self, request: pytest.FixtureRequest, make_engine: MakeEngine) -> Engine:
        return make_engine(isolation_level=request.param)

    @pytest.mark.parametrize("kind", WRITES.values(), ids=WRITES.keys())
    def test_its_write_is_stale(
        self, guard: Guard, engine, bank: Bank, account, resource, in_thread, kind: Write
    ) -> None:
        before = bank.state(account)
        lease = guard.acquire(resource)
        with Session(engine) as session:
            with bank.admitting(resource, 2):
                enter = in_thread(enter_explicitly, session, lease)
                bank.wait_until_queued()
            enter.result(20)
            with pytest.raises(StaleFenceError) as refusal:
                kind(session, account)
            facts = refusal.value
            assert (facts.resource, facts.token, facts.current_token) == (resource, 1, 2)
            assert refusal.value.__cause__.sqlstate == "40001"
            session.rollback()
            assert session.execute(text("SELECT 1")).scalar_one() == 1
        assert lease.lost
        assert bank.state(account) == before

    def test_it_may_still_read(
        self, guard: Guard, engine, bank: Bank, account: int, resource: str, in_thread
    ) -> None:
        lease = guard.acquire(resource)
        with Session(engine) as session:
            with bank.admitting(resource, 2):
                enter = in_thread(enter_explicitly, session, lease)
                bank.wait_until_queued()
            enter.result(20)
            assert read(session, account) == 100
            session.commit()


def enter_explicitly(session: Session, lease: Lease) -> None:
    """Begin a transaction under a lease; it outlives the fence."""
    with fence(session, lease):
        session.execute(text("SELECT 1"))


def test_under_read_committed_the_entry_itself_sees_what_it_waited_for(
    make_engine: MakeEngine, locks: ScriptedLocks, bank: Bank, resource: str, in_thread
) -> None:
    engine = make_engine(isolation_level="READ COMMITTED")
    lease = Guard(locks, engine).acquire(resource)
    with Session(engine) as session:
        with bank.admitting(resource, 2):
            enter = in_thread(enter_explicitly, session, lease)
            bank.wait_until_queued()
        with pytest.raises(StaleFenceError) as refusal:
            enter.result(20)
    assert refusal.value.current_token == 2


@pytest.mark.parametrize("level", LEVELS)
async def test_under_asyncio_a_predecessor_is_refused_and_nothing_is_lost(
    async_engine: AsyncEngine, bank: Bank, account: int, resource: str, level: str
) -> None:
    engine = async_engine.execution_options(isolation_level=level)
    a = await AsyncGuard(AsyncScriptedLocks(1), engine).acquire(resource)
    b = await AsyncGuard(AsyncScriptedLocks(2), engine).acquire(resource)
    async with AsyncSession(engine) as first, AsyncSession(engine) as second:
        with fence(second, b):
            seen = await second.run_sync(read, account)
            with fence(first, a), pytest.raises(StaleFenceError):
                await first.run_sync(write, account, 101)
            await first.rollback()
            await second.rollback()
            with fence(first, a), pytest.raises(LeaseLostError):
                await first.run_sync(write, account, 101)
            await second.run_sync(write, account, seen + 10)
            await second.commit()
    assert bank.balance(account) == 110

"""Admission: a transaction of its own, on connections of its own, that never waits for ever."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    Guard,
    GuardNotInstalledError,
    LeaseExpiredError,
    LockNotAcquiredError,
    LockServiceError,
    fence,
)
from fencing.request import MAX_TOKEN
from tests.support.bank import Bank, statements_of
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks, expire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.banking import MakeEngine

ADMISSION_BACKEND = (
    "SELECT max(pid) FROM pg_stat_activity WHERE datname = current_database() "
    "AND query LIKE '%%fencing.admit(CAST%%'"
)


@pytest.fixture
def blocker(guard: Guard, engine: Engine, resource: str) -> Iterator[int]:
    """The backend of an open transaction of another thread under an earlier lease."""
    with Session(engine) as session, ThreadPoolExecutor() as pool:

        def begin() -> int:
            with fence(session, guard.acquire(resource)):
                return session.scalar(text("SELECT pg_backend_pid()"))

        yield pool.submit(begin).result(20)


class TestBlocked:
    @pytest.mark.parametrize("how", [{"blocking": False}, {"blocking_timeout": 0.05}], ids=str)
    def test_it_names_the_backend_and_gives_the_lock_back(
        self, engine: Engine, bank: Bank, resource: str, blocker: int, how: dict
    ) -> None:
        locks = ScriptedLocks(2)
        with pytest.raises(LockNotAcquiredError, match="blocked by open transactions") as refusal:
            Guard(locks, engine).acquire(resource, **how)
        assert refusal.value.blocked_by == (blocker,)
        assert refusal.value.resource == resource
        assert isinstance(refusal.value, TimeoutError)
        assert [call[0] for call in locks.calls] == ["acquire", "release"]
        assert bank.mark(resource)[0] == 1

    @pytest.mark.usefixtures("blocker")
    def test_without_blocking_the_server_is_not_made_to_wait(
        self, engine: Engine, resource: str
    ) -> None:
        sent: list[dict] = []
        guard = Guard(ScriptedLocks(2), engine)
        event.listen(
            guard.databases[0].admissions.engine,
            "before_cursor_execute",
            lambda *a: sent.append(a[3]),
        )
        with pytest.raises(LockNotAcquiredError):
            guard.acquire(resource, blocking=False)
        assert [values["wait_ms"] for values in sent] == [0]

    @pytest.mark.usefixtures("blocker")
    def test_try_acquire_answers_none_and_gives_the_lock_back(
        self, engine: Engine, resource: str
    ) -> None:
        locks = ScriptedLocks(2)
        assert Guard(locks, engine).try_acquire(resource) is None
        assert [call[0] for call in locks.calls] == ["acquire", "release"]

    async def test_under_asyncio_as_well(
        self, async_engine: AsyncEngine, resource: str, blocker: int
    ) -> None:
        locks = AsyncScriptedLocks(2, 2)
        guard = AsyncGuard(locks, async_engine)
        assert await guard.try_acquire(resource) is None
        with pytest.raises(LockNotAcquiredError) as refusal:
            await guard.acquire(resource, blocking_timeout=0.05)
        assert refusal.value.blocked_by == (blocker,)
        assert locks.count("release") == 2

    async def test_a_cancelled_one_gives_the_lock_back(
        self, async_engine: AsyncEngine, bank: Bank, resource: str, blocker: int
    ) -> None:
        locks = AsyncScriptedLocks(2)
        guard = AsyncGuard(locks, async_engine)

        async def acquire() -> None:
            await guard.acquire(resource)

        acquiring = asyncio.create_task(acquire())
        await asyncio.to_thread(bank.wait_until_queued)
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert [call[0] for call in locks.calls] == ["acquire", "release"]
        with pytest.raises(LockNotAcquiredError) as refusal:
            await guard.acquire(resource, blocking=False)
        assert refusal.value.blocked_by == (blocker,), "the cancelled one does not queue any more"
        assert bank.mark(resource)[0] == 1

    def test_it_waits_no_longer_than_the_lease_lasts(
        self, engine: Engine, resource: str, blocker: int
    ) -> None:
        with pytest.raises(LockNotAcquiredError) as refusal:
            Guard(ScriptedLocks(2), engine).acquire(resource, ttl=0.1)
        assert refusal.value.blocked_by == (blocker,)

    def test_admit_alone_says_the_same(self, engine: Engine, resource: str, blocker: int) -> None:
        locks = ScriptedLocks(2)
        with pytest.raises(LockNotAcquiredError) as refusal:
            Guard(locks, engine).admit(locks.acquire(resource, ttl=0.1))
        assert refusal.value.blocked_by == (blocker,)


def test_a_lock_that_is_held_is_not_admitted(engine: Engine, bank: Bank, resource: str) -> None:
    guard = Guard(ScriptedLocks(None, None), engine)
    assert guard.try_acquire(resource) is None
    with pytest.raises(LockNotAcquiredError, match="held by another"):
        guard.acquire(resource, blocking=False)
    assert bank.mark(resource) is None


@pytest.mark.parametrize("short", [1, 2])
def test_a_lease_that_comes_with_little_trust_is_renewed_before_it_is_handed_out(
    engine: Engine, resource: str, short: int
) -> None:
    locks = ScriptedLocks()
    locks.ttl_left = 5.0 * short
    lease = Guard(locks, engine).acquire(resource, ttl=30)
    assert locks.count("renew") == 1
    assert lease.remaining > 25


def test_an_expired_lease_is_never_returned(engine: Engine, bank: Bank, resource: str) -> None:
    locks = ScriptedLocks()
    locks.ttl_left = -1.0
    with pytest.raises(LockNotAcquiredError, match="no time was left"):
        Guard(locks, engine).acquire(resource, blocking_timeout=0)
    assert locks.count("release") == 1
    assert bank.mark(resource) is None


def test_an_expired_lease_is_not_admitted(guard: Guard, bank: Bank, locks, resource: str) -> None:
    lease = locks.acquire(resource)
    expire(lease)
    with pytest.raises(LeaseExpiredError):
        guard.admit(lease)
    assert bank.mark(resource) is None


class TestAskingWithoutAnAnswer:
    """What is asked for an error message, or an outcome, is ``None`` when it is not to be had."""

    async def test_a_database_that_is_gone(self) -> None:
        nowhere = create_engine("postgresql+psycopg://127.0.0.1:1/none")
        admissions = Guard(ScriptedLocks(), nowhere).databases[0].admissions
        assert admissions.mark_at_once("r") is None
        assert admissions.ask("SELECT 1", {}) is None
        for driver in ("psycopg", "asyncpg"):
            nowhere_async = create_async_engine(f"postgresql+{driver}://127.0.0.1:1/none")
            guard = AsyncGuard(AsyncScriptedLocks(), nowhere_async)
            assert await guard.databases[0].admissions.aask("SELECT 1", {}) is None

    def test_a_mistake_of_ours_is_no_such_failure(self, guard: Guard) -> None:
        with pytest.raises(TypeError):
            guard.databases[0].admissions.ask(42, {})


class TestConnectionsOfItsOwn:
    def test_an_exhausted_pool_does_not_stop_it(
        self, make_engine: MakeEngine, locks, resource: str
    ) -> None:
        engine = make_engine(pool_size=1, max_overflow=0, pool_timeout=1)
        with Session(engine) as session:
            session.execute(text("SELECT 1"))
            with Guard(locks, engine).acquire(resource) as lease:
                assert lease.admitted

    async def test_an_exhausted_async_pool_does_not_stop_it(
        self, bank: Bank, async_locks, resource: str
    ) -> None:
        engine = create_async_engine(bank.url, pool_size=1, max_overflow=0, pool_timeout=1)
        async with (
            engine.connect(),
            AsyncGuard(async_locks, engine) as guard,
            guard.acquire(resource) as lease,
        ):
            assert lease.admitted
        await engine.dispose()

    def test_one_that_died_in_the_pool_is_no_reason_to_fail(
        self, own_bank: Bank, make_engine: MakeEngine, locks
    ) -> None:
        guard = Guard(locks, make_engine(own_bank.url))
        guard.acquire("account:1")
        own_bank.kill_backend(own_bank.value(ADMISSION_BACKEND))
        assert guard.acquire("account:2").admitted
        assert own_bank.mark("account:2") is not None

    async def test_nor_is_it_under_asyncio(self, own_bank: Bank, async_locks) -> None:
        engine = create_async_engine(own_bank.url)
        async with AsyncGuard(async_locks, engine) as guard:
            await guard.acquire("account:1")
            own_bank.kill_backend(own_bank.value(ADMISSION_BACKEND))
            assert (await guard.acquire("account:2")).admitted
        await engine.dispose()

    def test_they_present_nothing_inside_a_block(self, guard: Guard, resource: str) -> None:
        with guard.acquire(resource), statements_of(guard.databases[0].admissions.engine) as sent:
            guard.acquire(f"{resource}:inner")
        assert len(sent) == 1
        assert "fencing.admit" in sent[0]

    def test_closing_the_guard_closes_them_and_it_stays_usable(
        self, own_bank: Bank, make_engine: MakeEngine, locks
    ) -> None:
        guard = Guard(locks, make_engine(own_bank.url))
        guard.acquire("account:1")
        pid = own_bank.value(ADMISSION_BACKEND)
        guard.close()
        own_bank.wait_until_gone(pid)
        assert guard.acquire("account:2").admitted


def test_a_database_without_the_schema_is_named_and_the_lock_given_back(
    database: str, make_engine: MakeEngine, locks: ScriptedLocks
) -> None:
    with pytest.raises(GuardNotInstalledError, match=r"op\.install_fencing") as error:
        Guard(locks, make_engine(database)).acquire("x")
    assert locks.count("release") == 1
    assert error.value.__cause__ is not None


def test_a_mark_above_which_there_is_no_token_is_told(
    engine: Engine, bank: Bank, resource: str
) -> None:
    bank.raise_mark(resource, MAX_TOKEN)
    locks = ScriptedLocks(1)
    with pytest.raises(LockServiceError, match="largest token there is") as told:
        Guard(locks, engine).acquire(resource)
    assert told.value.resource == resource
    assert [call[0] for call in locks.calls] == ["acquire", "release"]

"""Several guarded leases: each is admitted, and a transaction presents all of them (I12)."""

from __future__ import annotations

import asyncio
import itertools
import logging
import queue
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    Guard,
    LockNotAcquiredError,
    RedisLockService,
    StaleFenceError,
    UnfencedWriteError,
    fence,
)
from tests.support.processes import ChildProcess
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks

if TYPE_CHECKING:
    import redis

    from fencing import Lease
    from tests.support.bank import Bank
    from tests.support.child import Parent

MOVE = text(
    "UPDATE accounts SET balance = balance + CASE id WHEN :source THEN -10 ELSE 10 END "
    "WHERE id IN (:source, :target)"
)


@pytest.fixture
def two(bank: Bank) -> tuple[int, int]:
    """The ids of two accounts with 100 each."""
    return bank.new_account(), bank.new_account()


def names_of(accounts: tuple[int, ...]) -> list[str]:
    return [f"account:{account}" for account in accounts]


class TestGuard:
    def test_each_is_admitted_and_a_transaction_presents_all(
        self, guard: Guard, engine: Engine, bank: Bank, two: tuple[int, int]
    ) -> None:
        with guard.acquire_all(names_of(two), ttl=10) as group:
            for lease in group:
                assert bank.mark(lease.resource) == (lease.token, lease.holder)
            with Session(engine) as session:
                session.execute(MOVE, {"source": two[0], "target": two[1]})
                session.commit()
        assert [bank.balance(account) for account in two] == [90, 110]
        assert all(lease.released for lease in group)
        with Session(engine) as session, pytest.raises(UnfencedWriteError):
            session.execute(MOVE, {"source": two[0], "target": two[1]})

    def test_one_of_them_overtaken_stops_the_whole_transaction(
        self, guard: Guard, engine: Engine, bank: Bank, two: tuple[int, int]
    ) -> None:
        with guard.acquire_all(names_of(two), ttl=10) as group:
            bank.admit(group[1].resource, group[1].token + 1)
            with Session(engine) as session, pytest.raises(StaleFenceError) as refusal:
                session.execute(MOVE, {"source": two[0], "target": two[1]})
            assert refusal.value.resource == group[1].resource
        assert [bank.balance(account) for account in two] == [100, 100]

    def test_what_cannot_be_admitted_gives_all_back(
        self, engine: Engine, two: tuple[int, int]
    ) -> None:
        first = Guard(ScriptedLocks(), engine)
        with ThreadPoolExecutor() as pool, Session(engine) as session:

            def hold() -> int:
                with fence(session, first.acquire(names_of(two)[1])):
                    pid: int = session.scalar(text("SELECT pg_backend_pid()"))
                    return pid

            pid = pool.submit(hold).result(20)
            locks = ScriptedLocks(2, 2)
            guard = Guard(locks, engine)
            with pytest.raises(LockNotAcquiredError) as refusal:
                guard.acquire_all(names_of(two), ttl=10, blocking_timeout=0.1)
            assert refusal.value.resource == names_of(two)[1]
            assert refusal.value.blocked_by == (pid,)
            assert locks.count("release") == 2

    def test_marks_ahead_are_healed_one_by_one(
        self, guard: Guard, bank: Bank, two: tuple[int, int]
    ) -> None:
        bank.admit(names_of(two)[1], 70)
        with guard.acquire_all(names_of(two), ttl=10) as group:
            assert group[0].token < 70 < group[1].token

    def test_what_is_held_here_already_is_refused_at_once(
        self, guard: Guard, locks: ScriptedLocks, two: tuple[int, int]
    ) -> None:
        with guard.acquire(names_of(two)[1]):
            asked = len(locks.calls)
            with pytest.raises(LockNotAcquiredError, match="already holds") as refusal:
                guard.acquire_all(names_of(two))
            assert refusal.value.resource == names_of(two)[1]
            assert len(locks.calls) == asked
        with (
            guard.acquire_all(names_of(two)),
            pytest.raises(LockNotAcquiredError, match="already holds"),
        ):
            guard.acquire(names_of(two)[0])

    def test_a_transaction_left_open_here_is_refused_before_anything_is_locked(
        self, guard: Guard, engine: Engine, locks: ScriptedLocks, two: tuple[int, int]
    ) -> None:
        with Session(engine) as session:
            with guard.acquire(names_of(two)[1]):
                session.execute(text("SELECT 1"))
            asked = len(locks.calls)
            with pytest.raises(LockNotAcquiredError, match="still open") as refusal:
                guard.acquire_all(names_of(two))
            assert refusal.value.resource == names_of(two)[1]
            assert len(locks.calls) == asked

    def test_the_loss_of_one_is_told(self, guard: Guard, two: tuple[int, int]) -> None:
        told: queue.Queue[Lease] = queue.Queue()
        with guard.acquire_all(names_of(two), ttl=0.3, on_lost=told.put) as group:
            assert {told.get(timeout=20).resource for _ in group} == set(names_of(two))

    def test_a_transaction_left_open_is_told(
        self,
        guard: Guard,
        engine: Engine,
        two: tuple[int, int],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with Session(engine) as session:
            with caplog.at_level(logging.WARNING), guard.acquire_all(names_of(two)):
                session.execute(text("SELECT 1"))
            assert sum("still open" in message for message in caplog.messages) == 2

    def test_its_options_reach_each_lease(
        self, guard: Guard, locks: ScriptedLocks, two: tuple[int, int]
    ) -> None:
        with guard.acquire_all(
            names_of(two), ttl=7, owner="me", keepalive=True, max_lifetime=60
        ) as group:
            assert [(lease.ttl, lease.owner) for lease in group] == [(7, "me")] * 2
        wishes = {"keepalive": True, "max_lifetime": 60}
        assert all(wishes.items() <= asked.items() for asked in locks.wishes)
        assert len(locks.wishes) == 2

    def test_a_plain_with_is_needed(self, guard: Guard, two: tuple[int, int]) -> None:
        async def enter() -> None:
            group = guard.acquire_all(names_of(two))
            with pytest.raises(TypeError, match="plain with"):
                await group.__aenter__()
            assert all(lease.released for lease in group)

        asyncio.run(enter())


class TestAsyncGuard:
    async def test_each_is_admitted_and_a_transaction_presents_all(
        self,
        async_guard: AsyncGuard,
        async_engine: AsyncEngine,
        bank: Bank,
        two: tuple[int, int],
    ) -> None:
        async with async_guard.acquire_all(names_of(two), ttl=10) as group:
            for lease in group:
                assert bank.mark(lease.resource) == (lease.token, lease.holder)
            async with AsyncSession(async_engine) as session:
                await session.execute(MOVE, {"source": two[0], "target": two[1]})
                await session.commit()
        assert [bank.balance(account) for account in two] == [90, 110]
        assert all(lease.released for lease in group)

    async def test_one_of_them_overtaken_stops_the_whole_transaction(
        self,
        async_guard: AsyncGuard,
        async_engine: AsyncEngine,
        bank: Bank,
        two: tuple[int, int],
    ) -> None:
        async with async_guard.acquire_all(names_of(two), ttl=10) as group:
            bank.admit(group[0].resource, group[0].token + 1)
            async with AsyncSession(async_engine) as session:
                with pytest.raises(StaleFenceError):
                    await session.execute(MOVE, {"source": two[0], "target": two[1]})
        assert [bank.balance(account) for account in two] == [100, 100]

    async def test_cancelled_while_it_is_admitted_it_gives_all_back(
        self,
        async_engine: AsyncEngine,
        bank: Bank,
        two: tuple[int, int],
    ) -> None:
        first = AsyncGuard(AsyncScriptedLocks(), async_engine)
        async with AsyncSession(async_engine) as session, first.acquire(names_of(two)[1]):
            await session.execute(text("SELECT 1"))
            locks = AsyncScriptedLocks(2, 2)
            second = AsyncGuard(locks, async_engine)
            task = asyncio.ensure_future(second.acquire_all(names_of(two), ttl=60)._begin())
            await asyncio.get_running_loop().run_in_executor(
                None, bank.wait_until_queued_for, names_of(two)[1]
            )
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert locks.count("release") == 2


def transfer(
    parent: Parent, redis_url: str, namespace: str, url: str, accounts: list[int], rounds: int
) -> None:
    """Move money between each two of the accounts, in both directions."""
    engine = create_engine(url)
    with (
        RedisLockService.from_url(redis_url, namespace=namespace) as locks,
        Guard(locks, engine) as guard,
    ):
        pairs = itertools.cycle(itertools.permutations(accounts, 2))
        parent.report("ready")
        parent.wait_for("begin")
        for source, target in itertools.islice(pairs, rounds):
            names = names_of((source, target))
            with guard.acquire_all(names, ttl=30, blocking_timeout=90), Session(engine) as session:
                session.execute(MOVE, {"source": source, "target": target})
                session.commit()
    engine.dispose()
    parent.report("done")


@pytest.mark.slow
def test_processes_that_move_money_in_circles_lose_none_and_never_wait_for_each_other(
    bank: Bank, redis_url: str, redis_namespace: str, redis_client: redis.Redis
) -> None:
    accounts = [bank.new_account() for _ in range(3)]
    arguments = redis_url, redis_namespace, bank.url, accounts, 18
    children = [ChildProcess(transfer, *arguments) for _ in range(4)]
    try:
        for child in children:
            child.wait_for("ready")
        for child in children:
            child.tell("begin")
        for child in children:
            child.wait_for("done", timeout=100)
            child.check()
    finally:
        for child in children:
            child.close()
    assert [bank.balance(account) for account in accounts] == [100, 100, 100]
    assert list(redis_client.scan_iter(f"{redis_namespace}:*:lock")) == []

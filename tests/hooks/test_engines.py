"""Hooks are installed once per root engine, on engines that can be guarded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool

from fencing import AsyncGuard, AsyncRedisLockService, Guard, RedisLockService
from tests.support.bank import Account, Bank, presented, statements_of
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks

if TYPE_CHECKING:
    from tests.support.banking import MakeEngine


def entries(engine: Engine) -> int:
    with statements_of(engine) as sent, engine.connect() as connection:
        connection.execute(text("SELECT 1"))
    return sum("fencing.enter" in statement for statement in sent)


def test_a_second_guard_on_an_engine_adds_no_entry(engine: Engine, guard: Guard, resource) -> None:
    others = [Guard(ScriptedLocks(), engine) for _ in range(3)]
    with guard.acquire(resource), others[0].acquire(f"{resource}:other"):
        assert entries(engine) == 1
    assert entries(engine) == 0
    assert len({each.databases for each in (guard, *others)}) == 1


def test_leases_of_two_guards_are_presented_together(engine, guard: Guard, resource) -> None:
    other = Guard(ScriptedLocks(5), engine)
    with guard.acquire(resource), other.acquire(f"{resource}:other"), engine.connect() as c:
        assert presented(c) == {resource: 1, f"{resource}:other": 5}


def test_an_engine_of_another_guard_is_not_concerned(
    make_engine: MakeEngine, own_bank: Bank, guard: Guard, engine: Engine, resource
) -> None:
    other_engine = make_engine(own_bank.url)
    other = Guard(ScriptedLocks(5), other_engine)
    with guard.acquire(resource), other.acquire(f"{resource}:other"):
        with engine.connect() as connection:
            assert list(presented(connection)) == [resource]
        with other_engine.connect() as connection:
            assert list(presented(connection)) == [f"{resource}:other"]


def test_two_engines_of_one_guard_each_present(
    make_engine: MakeEngine, own_bank: Bank, locks, engine: Engine, resource
) -> None:
    other = make_engine(own_bank.url)
    with Guard(locks, engine, other).acquire(resource):
        assert entries(engine) == entries(other) == 1


def test_option_engines_share_the_hooks_of_their_root(guard: Guard, engine, resource) -> None:
    option = engine.execution_options(isolation_level="SERIALIZABLE")
    with guard.acquire(resource):
        assert entries(option) == entries(option.execution_options(x=1)) == 1


def test_a_guard_made_from_an_option_engine_guards_the_root(
    make_engine: MakeEngine, locks, resource
) -> None:
    engine = make_engine()
    option = engine.execution_options(isolation_level="SERIALIZABLE")
    guard = Guard(locks, option, engine, option.execution_options(x=1))
    assert len(guard.databases) == 1
    with guard.acquire(resource):
        assert entries(engine) == entries(option) == 1


def test_sessions_of_every_kind_present(guard: Guard, engine, bank: Bank, account, resource):
    registry = scoped_session(sessionmaker(engine))
    with guard.acquire(resource):
        for session in (Session(engine), Session(engine, autobegin=False), registry()):
            with session:
                if not session.in_transaction():
                    session.begin()
                assert presented(session) == {resource: 1}
        with engine.connect() as connection, Session(connection) as session:
            assert presented(session) == {resource: 1}
        registry.get_one(Account, account).balance = 1
        registry.commit()
        registry.remove()
    assert bank.balance(account) == 1


def test_streaming_results_does_not_hinder_the_entry(guard: Guard, engine, resource) -> None:
    streaming = engine.execution_options(stream_results=True, yield_per=2)
    with guard.acquire(resource), streaming.connect() as connection:
        assert presented(connection) == {resource: 1}
        rows = connection.execute(text("SELECT generate_series(1, 5)"))
        assert [row[0] for row in rows] == [1, 2, 3, 4, 5]


def test_an_engine_without_a_pool_works(make_engine: MakeEngine, locks, resource) -> None:
    engine = make_engine(poolclass=NullPool)
    with Guard(locks, engine).acquire(resource):
        assert entries(engine) == 1


class TestUnfit:
    @pytest.mark.parametrize(
        ("url", "said"),
        [("sqlite://", "sqlite\\+pysqlite"), ("postgresql+psycopg2://x/y", "psycopg2")],
    )
    def test_another_dialect_or_driver_is_refused(self, url: str, said: str) -> None:
        try:
            engine = create_engine(url)
        except ModuleNotFoundError:
            engine = create_engine("postgresql+psycopg://x/y")
            engine.dialect.driver = "psycopg2"
        with pytest.raises(ValueError, match=rf"cannot guard.*{said}.*postgresql\+psycopg"):
            Guard(ScriptedLocks(), engine)
        engine.dispose()

    @pytest.mark.parametrize("wrong", [None, "postgresql+psycopg://x/y", object()])
    def test_something_that_is_no_engine(self, wrong) -> None:
        with pytest.raises(TypeError, match="takes engines of type Engine"):
            Guard(ScriptedLocks(), wrong)

    def test_no_engine_at_all(self) -> None:
        with pytest.raises(TypeError, match="at least one engine"):
            Guard(ScriptedLocks())
        with pytest.raises(TypeError, match="at least one engine"):
            AsyncGuard(AsyncScriptedLocks())

    def test_an_engine_of_the_other_kind(self, engine: Engine, async_engine: AsyncEngine) -> None:
        with pytest.raises(TypeError, match="use AsyncGuard"):
            Guard(ScriptedLocks(), async_engine)
        with pytest.raises(TypeError, match="use Guard"):
            AsyncGuard(AsyncScriptedLocks(), engine)

    async def test_a_lock_service_of_the_other_kind(
        self, engine: Engine, async_engine: AsyncEngine, redis_url: str
    ) -> None:
        with pytest.raises(TypeError, match="use AsyncGuard"):
            Guard(AsyncRedisLockService(redis.asyncio.Redis.from_url(redis_url)), engine)
        with pytest.raises(TypeError, match="use Guard"):
            AsyncGuard(RedisLockService(redis.Redis.from_url(redis_url)), async_engine)

    def test_a_redis_client_is_no_lock_service(self, engine: Engine, redis_client) -> None:
        with pytest.raises(TypeError, match=r"such as RedisLockService\(client\)"):
            Guard(redis_client, engine)

    async def test_a_lease_of_the_other_kind(
        self, guard: Guard, async_guard: AsyncGuard, locks, async_locks, resource
    ) -> None:
        with pytest.raises(TypeError, match="takes a Lease, not AsyncLease"):
            guard.admit(await async_locks.acquire(resource))
        with pytest.raises(TypeError, match="takes an AsyncLease, not Lease"):
            await async_guard.admit(locks.acquire(resource))

    @pytest.mark.parametrize(
        ("arguments", "error"),
        [
            ({"resource": ""}, ValueError),
            ({"resource": 42}, TypeError),
            ({"resource": "x\0"}, ValueError),
            ({"resource": "é" * 257}, ValueError),
            ({"ttl": 0}, ValueError),
            ({"ttl": float("nan")}, ValueError),
            ({"ttl": "1"}, TypeError),
            ({"blocking_timeout": -1}, ValueError),
            ({"blocking": False, "blocking_timeout": 1}, ValueError),
            ({"owner": 1}, TypeError),
        ],
        ids=str,
    )
    async def test_bad_arguments_are_refused_before_anything_is_asked(
        self, guard, locks, async_guard, async_locks, arguments: dict, error: type
    ) -> None:
        arguments = {"resource": "x", **arguments}
        with pytest.raises(error):
            guard.acquire(**arguments)
        with pytest.raises(error):
            async_guard.acquire(**arguments)
        assert locks.calls == async_locks.calls == []


async def test_an_async_engine_shares_its_hooks_with_its_sync_engine(
    async_engine: AsyncEngine, async_guard: AsyncGuard, resource
) -> None:
    option = async_engine.execution_options(isolation_level="SERIALIZABLE")
    second = AsyncGuard(AsyncScriptedLocks(), option)
    assert second.databases == async_guard.databases
    async with async_guard.acquire(resource), option.connect() as connection:
        assert await connection.run_sync(presented) == {resource: 1}


async def test_a_closed_async_guard_stays_usable(bank: Bank, async_locks, resource) -> None:
    engine = create_async_engine(bank.url)
    guard = AsyncGuard(async_locks, engine)
    async with guard:
        (await guard.acquire(resource)).released = True
    async with guard, guard.acquire(f"{resource}:again") as lease:
        assert lease.admitted
    await engine.dispose()

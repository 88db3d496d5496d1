"""Fixtures of a guarded bank, for the conftest.py of each folder that needs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fencing import AsyncGuard, Guard
from fencing.hooks.database import Database
from tests.support.bank import Bank, resource_of_account
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from tests.support.databases import DatabaseFactory

    MakeEngine = Callable[..., Engine]


@pytest.fixture(scope="session")
def shared_bank(database_factory: DatabaseFactory) -> Iterator[Bank]:
    """One bank for all tests that only need an account of their own."""
    with database_factory.fenced() as url:
        bank = Bank(url)
        yield bank
        bank.close()


@pytest.fixture
def bank(shared_bank: Bank) -> Bank:
    """The shared bank."""
    return shared_bank


@pytest.fixture
def own_bank(fenced_database: str) -> Iterator[Bank]:
    """A bank of this test's own, to change settings of."""
    bank = Bank(fenced_database)
    yield bank
    bank.close()


@pytest.fixture
def account(bank: Bank) -> int:
    """An account that no other test uses; 100 are on it."""
    return bank.new_account()


@pytest.fixture
def resource(account: int) -> str:
    """The account's resource."""
    return resource_of_account(account)


@pytest.fixture
def make_engine(bank: Bank) -> Iterator[MakeEngine]:
    """Makes engines of the bank, closed with all they have at the end."""
    engines: list[Engine] = []

    def make(url: str = bank.url, **options: object) -> Engine:
        engines.append(create_engine(url, **options))
        return engines[-1]

    yield make
    for engine in engines:
        if "_fencing_database" in vars(engine):
            Database.of(engine).admissions.close()
        engine.dispose()


@pytest.fixture
def engine(make_engine: MakeEngine) -> Engine:
    """An engine of the bank."""
    return make_engine()


@pytest.fixture
def locks() -> ScriptedLocks:
    """A lock service that excludes nobody."""
    return ScriptedLocks()


@pytest.fixture
def guard(locks: ScriptedLocks, engine: Engine) -> Guard:
    """A guard of the engine."""
    return Guard(locks, engine)


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_engine(bank: Bank, request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    """An async engine of the bank, with each driver."""
    engine = create_async_engine(make_url(bank.url).set(drivername=f"postgresql+{request.param}"))
    yield engine
    if "_fencing_database" in vars(engine.sync_engine):
        await Database.of(engine.sync_engine).admissions.aclose()
    await engine.dispose()


@pytest.fixture
def async_locks() -> AsyncScriptedLocks:
    """An asynchronous lock service that excludes nobody."""
    return AsyncScriptedLocks()


@pytest.fixture
def async_guard(async_locks: AsyncScriptedLocks, async_engine: AsyncEngine) -> AsyncGuard:
    """A guard of the async engine."""
    return AsyncGuard(async_locks, async_engine)

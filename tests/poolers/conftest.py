"""A guarded bank, and PgBouncers in transaction mode before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fencing import AsyncGuard, Guard
from fencing.embedded.pgbouncer import PgBouncer
from fencing.hooks.database import Database
from tests.support.banking import *  # noqa: F403 - pytest collects fixtures by name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from sqlalchemy import Engine

    from tests.support.bank import Bank
    from tests.support.banking import MakeEngine
    from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks

# PgBouncer knows nothing of the statements that psycopg prepares, before version 1.21.
UNPREPARED = {"prepare_threshold": None}


@pytest.fixture(scope="session")
def pooler(database_url: str) -> Iterator[PgBouncer]:
    """A PgBouncer with connections enough."""
    with PgBouncer(database_url, pool_size=10) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def narrow(database_url: str) -> Iterator[PgBouncer]:
    """A PgBouncer with one connection to each database."""
    with PgBouncer(database_url, pool_size=1) as pooler:
        yield pooler


@pytest.fixture(scope="session")
def impatient(database_url: str) -> Iterator[PgBouncer]:
    """The same, and who waits for that connection is soon turned away."""
    with PgBouncer(database_url, pool_size=1, query_wait_timeout=1) as pooler:
        yield pooler


@pytest.fixture
def pooled(pooler: PgBouncer, bank: Bank, make_engine: MakeEngine) -> Engine:
    """An engine of the bank, through the pooler."""
    return make_engine(pooler.address(bank.url), connect_args=UNPREPARED)


@pytest.fixture
def pooled_guard(locks: ScriptedLocks, pooled: Engine) -> Guard:
    """A guard of that engine."""
    return Guard(locks, pooled)


@pytest.fixture(params=["psycopg", "asyncpg"])
async def async_pooled(
    request: pytest.FixtureRequest, pooler: PgBouncer, bank: Bank
) -> AsyncIterator[AsyncEngine]:
    """An async engine of the bank, through the pooler."""
    url = pooler.address(bank.url)
    if request.param == "asyncpg":
        pytest.importorskip("asyncpg")
        url = url.replace("+psycopg", "+asyncpg")
        uncached = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
        engine = create_async_engine(url, connect_args=uncached)
    else:
        engine = create_async_engine(url, connect_args=UNPREPARED)
    yield engine
    if "_fencing_database" in vars(engine.sync_engine):
        await Database.of(engine.sync_engine).admissions.aclose()
    await engine.dispose()


@pytest.fixture
def async_pooled_guard(async_locks: AsyncScriptedLocks, async_pooled: AsyncEngine) -> AsyncGuard:
    """A guard of that engine."""
    return AsyncGuard(async_locks, async_pooled)

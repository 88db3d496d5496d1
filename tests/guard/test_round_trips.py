"""Round trips, counted by a proxy in front of each server."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, make_url, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencing import AsyncGuard, AsyncRedisLockService, Guard, RedisLockService
from fencing.embedded.proxy import TcpProxy
from tests.support.bank import Account, Bank

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.banking import MakeEngine


@pytest.fixture
def postgres(bank: Bank) -> Iterator[TcpProxy]:
    with TcpProxy.to(bank.url) as proxy:
        yield proxy


@pytest.fixture
def valkey(redis_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(redis_url) as proxy:
        yield proxy


@pytest.fixture
def engine(make_engine: MakeEngine, postgres: TcpProxy) -> Engine:
    return make_engine(postgres.url)


@pytest.fixture
def locks(valkey: TcpProxy, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(valkey.url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture
async def async_engine(postgres: TcpProxy) -> AsyncIterator[AsyncEngine]:
    engine = create_async_engine(postgres.url)
    yield engine
    await engine.dispose()


def round_trips(postgres: TcpProxy) -> int:
    return postgres.commands("Q", "S")


def asked(valkey: TcpProxy) -> int:
    """How often it was: a release has an EXISTS ahead of its script, in one message."""
    scripts = valkey.commands("EVALSHA")
    assert valkey.commands() == scripts + valkey.commands("EXISTS") <= 2 * scripts
    return scripts


def withdraw(session: Session, account: int) -> None:
    session.get_one(Account, account).balance -= 10
    session.commit()


def read(session: Session) -> None:
    session.execute(text("SELECT 1"))
    session.commit()


@pytest.fixture
def warm(guard: Guard, engine: Engine, resource: str) -> None:
    """Connections are open and scripts are loaded."""
    with guard.acquire(resource), Session(engine) as session:
        read(session)


def test_an_acquire_is_one_command_and_one_transaction_of_one_round_trip(
    warm, guard: Guard, valkey: TcpProxy, postgres: TcpProxy, resource: str
) -> None:
    valkey.reset_counts()
    postgres.reset_counts()
    lease = guard.acquire(resource)
    assert lease.token == 2
    assert valkey.commands() == valkey.commands("EVALSHA") == 1
    assert round_trips(postgres) == 1
    assert postgres.connections == valkey.connections == 0


def test_a_release_is_one_round_trip_and_nothing_in_the_database(
    warm, guard: Guard, valkey: TcpProxy, postgres: TcpProxy, resource: str
) -> None:
    lease = guard.acquire(resource)
    valkey.reset_counts()
    postgres.reset_counts()
    lease.release()
    assert asked(valkey) == 1
    assert round_trips(postgres) == 0


def test_a_block_opens_and_closes_without_asking_anybody(
    warm, guard: Guard, valkey: TcpProxy, postgres: TcpProxy, resource: str
) -> None:
    lease = guard.acquire(resource)
    valkey.reset_counts()
    postgres.reset_counts()
    with lease:
        pass
    assert asked(valkey) == 1, "the release"
    assert round_trips(postgres) == 0


def test_a_transaction_under_a_lease_is_no_round_trip_more(
    warm, guard: Guard, engine: Engine, valkey, postgres: TcpProxy, resource: str
) -> None:
    counts = []
    with Session(engine) as session:
        read(session)
        postgres.reset_counts()
        read(session)
        counts.append(round_trips(postgres))
        with guard.acquire(resource):
            read(session)
            valkey.reset_counts()
            postgres.reset_counts()
            read(session)
            counts.append(round_trips(postgres))
            assert valkey.commands() == 0
    without, under_a_lease = counts
    assert under_a_lease == without, "BEGIN and entry go in one message"


def test_however_many_leases_it_presents(
    warm, guard: Guard, engine: Engine, postgres: TcpProxy, resource: str
) -> None:
    counts = []
    with Session(engine) as session, guard.acquire(resource):
        for n in range(3):
            with guard.acquire(f"{resource}:{n}"):
                read(session)
                postgres.reset_counts()
                read(session)
                counts.append(round_trips(postgres))
    assert len(set(counts)) == 1


def test_nor_is_one_where_results_are_streamed(
    warm, guard: Guard, engine: Engine, postgres: TcpProxy, resource: str
) -> None:
    counts = []
    streaming = engine.execution_options(stream_results=True)
    with guard.acquire(resource), streaming.connect() as connection:
        for suspension in (guard.suspended(), nullcontext()):
            with suspension:
                postgres.reset_counts()
                connection.execute(text("SELECT 1")).all()
                connection.commit()
                counts.append(round_trips(postgres))
    without, under_a_lease = counts
    assert under_a_lease == without, "BEGIN and entry go in one message"


def test_a_guarded_write_costs_no_further_round_trip(
    warm, guard: Guard, engine: Engine, postgres: TcpProxy, account: int, resource: str
) -> None:
    with guard.acquire(resource), Session(engine) as session:
        withdraw(session, account)  # with the one look whether the table is guarded
        postgres.reset_counts()
        withdraw(session, account)
    # BEGIN with entry, SELECT, UPDATE, COMMIT
    assert round_trips(postgres) == 4


def test_raising_a_token_costs_one_more_of_each(
    warm, guard: Guard, bank: Bank, valkey: TcpProxy, postgres: TcpProxy, resource: str
) -> None:
    name = f"{resource}:healed"
    bank.admit(name, 5)
    guard.acquire(f"{resource}:other").release()
    valkey.reset_counts()
    postgres.reset_counts()
    assert guard.acquire(name).token == 6
    assert valkey.commands("EVALSHA") == 2
    assert round_trips(postgres) == 2


async def test_with_asyncpg_an_entry_is_one_statement_more(
    valkey, postgres, redis_namespace, resource: str
) -> None:
    url = make_url(postgres.url).set(drivername="postgresql+asyncpg")
    engine = create_async_engine(url)
    locks = AsyncRedisLockService.from_url(valkey.url, namespace=redis_namespace)
    counts = []
    async with AsyncGuard(locks, engine) as guard, AsyncSession(engine) as session:
        for number in range(2):
            await session.run_sync(read)
            postgres.reset_counts()
            await session.run_sync(read)
            counts.append(round_trips(postgres))
            async with guard.acquire(f"{resource}:{number}"):
                await session.run_sync(read)
                postgres.reset_counts()
                await session.run_sync(read)
                counts.append(round_trips(postgres))
    await engine.dispose()
    assert counts[3] == counts[2] + 1


async def test_under_asyncio_it_is_the_same(
    async_engine: AsyncEngine, valkey, postgres, redis_namespace, account: int, resource: str
) -> None:
    locks = AsyncRedisLockService.from_url(valkey.url, namespace=redis_namespace)
    async with AsyncGuard(locks, async_engine) as guard, AsyncSession(async_engine) as session:
        async with guard.acquire(resource):
            await session.run_sync(withdraw, account)
        valkey.reset_counts()
        postgres.reset_counts()
        async with guard.acquire(resource):
            assert (asked(valkey), round_trips(postgres)) == (1, 1)
            await session.run_sync(withdraw, account)
            assert (asked(valkey), round_trips(postgres)) == (1, 1 + 4)
        assert (asked(valkey), round_trips(postgres)) == (2, 1 + 4)

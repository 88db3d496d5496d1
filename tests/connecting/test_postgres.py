"""``connect()`` with addresses of PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import AsyncPostgresLockService, PostgresLockService, connect, connect_async
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(params=["postgresql", "postgres", "postgresql+psycopg", "PostgreSQL"])
def address(request: pytest.FixtureRequest, fenced_database: str) -> str:
    return f"{request.param}://{plain_url(fenced_database).partition('://')[2]}"


def test_an_address_is_enough(address: str) -> None:
    service = connect(address, max_connections=2)
    assert isinstance(service, PostgresLockService)
    with service, service.acquire("r", ttl=10) as lease:
        assert lease.token == 1


async def test_so_it_is_for_asyncio(address: str) -> None:
    service = connect_async(address)
    assert isinstance(service, AsyncPostgresLockService)
    async with service, service.acquire("r", ttl=10) as lease:
        assert lease.token == 1


def test_a_conninfo_is_an_address_of_the_service(fenced_database: str) -> None:
    url = make_url(fenced_database)
    conninfo = f"host={url.host} port={url.port} user={url.username} dbname={url.database}"
    if url.password:
        conninfo += f" password={url.password}"
    with PostgresLockService(conninfo) as locks, locks.acquire("r", ttl=10) as lease:
        assert lease.token == 1


def test_an_engine_lends_its_address(fenced_database: str) -> None:
    engine = create_engine(fenced_database)
    with PostgresLockService.from_engine(engine) as locks, locks.acquire("r", ttl=10) as lease:
        assert lease.token == 1
    with pytest.raises(TypeError, match="from_engine"):
        PostgresLockService(engine)  # type: ignore[arg-type] # what this is about


async def test_so_does_an_async_one(fenced_database: str) -> None:
    engine = create_async_engine(make_url(fenced_database).set(drivername="postgresql+asyncpg"))
    async with AsyncPostgresLockService.from_engine(engine) as locks:
        await (await locks.acquire("r", ttl=10)).release()


@pytest.mark.parametrize(
    "make",
    [
        lambda: connect("postgresql://localhost/bank", namespace="other"),
        lambda: PostgresLockService(42),
        lambda: PostgresLockService.from_engine("postgresql://localhost/bank"),
        lambda: PostgresLockService("postgresql://localhost", max_connections="8"),
    ],
)
def test_what_it_cannot_be_made_of_is_a_type_error(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        make()


def test_an_address_that_makes_no_sense_is_a_value_error_without_its_password() -> None:
    with pytest.raises(ValueError, match="cannot read") as caught:
        connect("postgresql://user:secret@localhost:port:/?x")
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError, match="at least 1"):
        connect("postgresql://localhost", max_connections=0)


def test_nothing_of_an_address_is_shown_but_where_it_leads() -> None:
    service = connect("postgresql://user:secret@db.example:5433/bank?options=-csecret")
    assert repr(service) == "<PostgresLockService db.example:5433/bank>"

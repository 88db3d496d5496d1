"""Where connections come from, and how one may be that somebody else has made."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from fencing import AsyncPostgresLockService, PostgresLockService
from fencing.embedded.proxy import TcpProxy
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from tests.support.bank import Bank

ODD = "account:\N{LATIN SMALL LETTER E WITH ACUTE}"


@pytest.fixture
def bank(own_bank: Bank) -> Bank:
    """Of this test's own, to change settings of."""
    return own_bank


def test_a_function_that_connects_will_do(bank: Bank) -> None:
    made: list[object] = []

    def connect() -> psycopg.Connection[Any]:
        made.append(1)
        return psycopg.connect(plain_url(bank.url))

    with PostgresLockService(connect) as locks:
        for _ in range(3):
            locks.acquire("r", ttl=60).release()
    assert len(made) == 1


async def test_so_will_an_asynchronous_one(bank: Bank) -> None:
    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(plain_url(bank.url))

    async with AsyncPostgresLockService(connect) as locks:
        await (await locks.acquire("r", ttl=60)).release()


@pytest.mark.parametrize("left", ["SET application_name = 'mine'", "SELECT 1/0"])
def test_a_transaction_that_such_a_function_left_open_is_ended(bank: Bank, left: str) -> None:
    def connect() -> psycopg.Connection[Any]:
        connection = psycopg.connect(plain_url(bank.url))
        with contextlib.suppress(psycopg.Error):
            connection.execute(left.encode())
        return connection

    with PostgresLockService(connect) as locks, PostgresLockService(connect) as others:
        with locks.acquire("r", ttl=60) as lease:
            assert bank.mark("r") == (lease.token, lease.holder)
            assert others.try_acquire("r") is None
        assert not others.locked("r")


async def test_so_is_one_that_an_asynchronous_one_left_open(bank: Bank) -> None:
    async def connect() -> psycopg.AsyncConnection[Any]:
        connection = await psycopg.AsyncConnection.connect(plain_url(bank.url))
        await connection.execute("SET application_name = 'mine'")
        return connection

    async with AsyncPostgresLockService(connect) as locks, AsyncPostgresLockService(connect) as b:
        lease = await locks.acquire("r", ttl=60)
        assert bank.mark("r") == (lease.token, lease.holder)
        assert await b.try_acquire("r") is None


def test_connections_that_were_dropped_without_a_word_are_not_tried_one_by_one(bank: Bank) -> None:
    with (
        TcpProxy.to(bank.url) as proxy,
        PostgresLockService(proxy.url) as locks,
        ThreadPoolExecutor(8) as pool,
    ):
        everybody = threading.Barrier(8)

        def hold(n: int) -> None:
            everybody.wait(60)
            locks.acquire(f"r{n}", ttl=60).release()

        list(pool.map(hold, range(8)))
        kept = locks.acquire("kept", ttl=9, keepalive=True)
        proxy.silence()
        # The first attempt finds it out, the second connects anew.
        locks.acquire("r", ttl=60, blocking_timeout=20).release()
        kept.renew()
        assert not kept.lost


async def test_nor_are_they_by_asyncio(bank: Bank) -> None:
    with TcpProxy.to(bank.url) as proxy:
        async with AsyncPostgresLockService(proxy.url) as locks:
            leases = [locks.acquire(f"r{n}", ttl=60)._begin() for n in range(8)]
            for lease in await asyncio.gather(*leases):
                await lease.release()
            kept = await locks.acquire("kept", ttl=60)
            proxy.silence()
            await kept.renew()
            await kept.release()


@pytest.mark.parametrize("how", ["address", "environment", "database", "function"])
def test_names_are_the_same_whatever_the_encoding_of_a_connection(
    bank: Bank, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    plain = plain_url(bank.url)
    source: Any = plain
    if how == "environment":
        monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    elif how == "database":
        name = psycopg.conninfo.conninfo_to_dict(plain)["dbname"]
        bank.observer.execute(f'ALTER DATABASE "{name}" SET client_encoding = latin1'.encode())
    else:
        latin = make_conninfo(plain, client_encoding="latin1")
        source = latin if how == "address" else lambda: psycopg.connect(latin)
    with PostgresLockService(source) as locks, locks.acquire(ODD, ttl=60, owner=ODD):
        assert locks.inspect(ODD).owner == ODD
        bank.observer.execute("SET client_encoding = 'UTF8'")
        found = bank.observer.execute("SELECT resource, owner FROM fencing.lease").fetchone()
        assert found == (ODD, ODD)


async def test_so_they_are_for_asyncio(bank: Bank) -> None:
    latin = make_conninfo(plain_url(bank.url), client_encoding="latin1")

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(latin)

    async with AsyncPostgresLockService(latin) as locks, AsyncPostgresLockService(connect) as b:
        await locks.acquire(ODD, ttl=60)
        assert await b.try_acquire(ODD) is None
        assert bank.mark(ODD) is not None

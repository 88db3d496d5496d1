"""Acquisitions that an open transaction of a predecessor keeps from being admitted."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencing import AsyncPostgresLockService, LockNotAcquiredError, PostgresLockService
from fencing.schema.names import claim_item
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bank import Bank

PATIENCE = 60.0
WAITING = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'advisory'"


@pytest.fixture
def bank(own_bank: Bank) -> Bank:
    """Of this test's own, to see who waits in it."""
    return own_bank


@contextmanager
def open_transaction(bank: Bank, *resources: str) -> Iterator[psycopg.Connection[Any]]:
    """A transaction under leases that have been released already."""
    with (
        psycopg.connect(plain_url(bank.url)) as connection,
        PostgresLockService(bank.url) as locks,
    ):
        for resource in resources:
            lease = locks.acquire(resource, ttl=PATIENCE)
            connection.execute(
                "SELECT fencing.enter(%s, 60000, NULL)",
                [claim_item(resource, lease.token, lease.holder)],
            )
            lease.release()
        yield connection


def test_whoever_waits_is_admitted_when_it_ends(bank: Bank, locks: PostgresLockService) -> None:
    with ThreadPoolExecutor(1) as pool, open_transaction(bank, "r") as connection:
        waiter = pool.submit(locks.acquire, "r", ttl=PATIENCE)
        bank.wait_until(f"SELECT count(*) = 1 {WAITING}")
        connection.rollback()
        lease = waiter.result(PATIENCE)
        assert bank.mark("r") == (lease.token, lease.holder)


def test_whoever_has_no_patience_is_told_how_long_he_waited(
    bank: Bank, locks: PostgresLockService
) -> None:
    with open_transaction(bank, "r"):
        with pytest.raises(LockNotAcquiredError) as caught:
            locks.acquire("r", ttl=PATIENCE, blocking_timeout=0.7)
        assert caught.value.blocked_by
        assert caught.value.waited >= 0.69
        assert not locks.locked("r")


def test_leases_are_renewed_while_others_wait(bank: Bank) -> None:
    with (
        PostgresLockService(bank.url, max_connections=2) as locks,
        ThreadPoolExecutor(4) as pool,
        open_transaction(bank, *"1234") as connection,
    ):
        kept = locks.acquire("kept", ttl=PATIENCE)
        waiters = [pool.submit(locks.acquire, name, ttl=PATIENCE) for name in "1234"]
        try:
            for _ in range(3):
                bank.wait_until(f"SELECT count(*) > 0 {WAITING}")
                kept.renew()
        finally:
            connection.rollback()
        for waiter in waiters:
            waiter.result(PATIENCE).release()


async def test_so_they_are_on_a_single_connection_of_asyncio(bank: Bank) -> None:
    with open_transaction(bank, *"12") as connection:
        async with AsyncPostgresLockService(bank.url, max_connections=1) as locks:
            kept = await locks.acquire("kept", ttl=PATIENCE)
            waiters = [
                asyncio.ensure_future(locks.acquire(name, ttl=PATIENCE)._begin()) for name in "12"
            ]
            try:
                for _ in range(3):
                    await asyncio.to_thread(bank.wait_until, f"SELECT count(*) > 0 {WAITING}")
                    await kept.renew()
            finally:
                connection.rollback()
            for lease in await asyncio.gather(*waiters):
                await lease.release()


async def test_nobody_in_the_database_waits_for_who_was_cancelled(bank: Bank) -> None:
    with open_transaction(bank, "r"):
        async with AsyncPostgresLockService(bank.url) as locks:
            for _ in range(4):
                waiter = asyncio.ensure_future(locks.acquire("r", ttl=3600)._begin())
                await asyncio.to_thread(bank.wait_until, f"SELECT count(*) = 1 {WAITING}")
                waiter.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await waiter
                await asyncio.to_thread(bank.wait_until, f"SELECT count(*) = 0 {WAITING}")


def test_nobody_in_the_database_waits_for_who_was_killed(
    bank: Bank, locks: PostgresLockService
) -> None:
    with open_transaction(bank, "r"):
        pid = os.fork()
        if pid == 0:
            try:
                locks.acquire("r", ttl=3600)
            finally:
                os._exit(0)
        try:
            bank.wait_until(f"SELECT count(*) = 1 {WAITING}")
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        bank.wait_until(f"SELECT count(*) = 0 {WAITING}")


def test_forgetting_leases_waits_for_no_acquisition_that_deletes_dead_waiters(bank: Bank) -> None:
    bank.observer.execute(
        "INSERT INTO fencing.waiter (holder, resource, gone_at) SELECT holder, 'r', "
        "clock_timestamp() FROM unnest(ARRAY['deleted elsewhere', 'left']) AS holder"
    )
    with psycopg.connect(plain_url(bank.url)) as connection:
        connection.execute("DELETE FROM fencing.waiter WHERE holder = 'deleted elsewhere'")
        bank.observer.execute("SET lock_timeout = '5s'")
        bank.observer.execute("SELECT fencing.forget_leases('1 hour')")
        connection.rollback()
    left = bank.observer.execute("SELECT holder FROM fencing.waiter").fetchall()
    assert left == [("deleted elsewhere",)]

"""Waiting: who is called, in which order, on how many connections, and what a lost call costs."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencing import AsyncPostgresLockService, LockNotAcquiredError, PostgresLockService
from fencing.embedded.pgbouncer import PgBouncer
from fencing.locks.postgres.acquiring import QUEUE_SECONDS
from tests.support.databases import plain_url
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bank import Bank
    from tests.support.child import Parent

PATIENCE = 60.0
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fencing locks' AND "
LISTENING = f"{SESSIONS} datname = current_database() AND query = 'LISTEN fencing'"


@pytest.fixture
def bank(own_bank: Bank) -> Bank:
    """Of this test's own, whose sessions can be counted."""
    return own_bank


def wait_in_line(parent: Parent, url: str, resource: str) -> None:
    """Waits fairly for a resource, and reports its token; then holds it until told."""
    with PostgresLockService(url) as locks:
        parent.report("ready")
        with locks.acquire(resource, ttl=PATIENCE, blocking_timeout=PATIENCE, fair=True) as lease:
            parent.report("granted", token=lease.token)
            parent.wait_for("release")
        parent.report("released")


@pytest.fixture
def waiting(bank: Bank) -> Iterator[Any]:
    """Makes processes that wait for "r", one after the other."""
    children: list[ChildProcess] = []

    def wait() -> ChildProcess:
        child = ChildProcess(wait_in_line, bank.url, "r")
        children.append(child)
        child.wait_for("ready")
        bank.wait_until("SELECT waiters = %s FROM fencing.look('r')", len(children))
        return child

    yield wait
    for child in children:
        child.close()


def test_across_processes_the_one_that_asked_first_is_first(
    locks: PostgresLockService, waiting: Any
) -> None:
    lease = locks.acquire("r", ttl=PATIENCE)
    children = [waiting() for _ in range(3)]
    lease.release()
    for place, child in enumerate(children, 1):
        assert child.wait_for("granted")["token"] == lease.token + place
        child.tell("release")


def test_nobody_is_served_before_those_who_wait(
    locks: PostgresLockService, bank: Bank, waiting: Any
) -> None:
    lease = locks.acquire("r", ttl=PATIENCE)
    child = waiting()
    child.suspend()
    lease.release()
    assert locks.try_acquire("r") is None
    with pytest.raises(LockNotAcquiredError, match="waited longer"):
        locks.acquire("r", blocking=False)
    child.resume()
    child.wait_for("granted")


def test_a_waiter_that_is_dead_delays_the_others_by_no_more_than_its_place_is_kept(
    locks: PostgresLockService, waiting: Any
) -> None:
    lease = locks.acquire("r", ttl=PATIENCE)
    dead, living = waiting(), waiting()
    dead.kill()
    lease.release()
    assert living.wait_for("granted")["token"] == lease.token + 1
    assert QUEUE_SECONDS < 3


def test_who_gives_up_leaves_no_place_behind(locks: PostgresLockService, bank: Bank) -> None:
    with locks.acquire("r", ttl=PATIENCE):
        for fair in (False, True):
            with pytest.raises(LockNotAcquiredError):
                locks.acquire("r", blocking_timeout=0.2, fair=fair)
    assert bank.value("SELECT count(*) FROM fencing.waiter") == 0


def test_a_thousand_waiters_have_one_place_and_few_connections(
    locks: PostgresLockService, bank: Bank
) -> None:
    lease = locks.acquire("r", ttl=PATIENCE)
    begun = threading.Semaphore(0)

    def wait() -> int:
        begun.release()
        with locks.acquire("r", ttl=PATIENCE, blocking_timeout=PATIENCE) as granted:
            return granted.token

    with ThreadPoolExecutor(1000) as pool:
        waiters = [pool.submit(wait) for _ in range(1000)]
        for _ in waiters:
            begun.acquire()
        bank.wait_until("SELECT waiters = 1 FROM fencing.look('r')")
        bank.wait_until(LISTENING.replace("count(*)", "count(*) = 1"))
        assert bank.value(f"{SESSIONS} datname = current_database()") <= 9
        lease.release()
        tokens = [waiter.result(PATIENCE) for waiter in waiters]
    assert sorted(tokens) == list(range(lease.token + 1, lease.token + 1001))


async def test_tasks_do_alike(bank: Bank) -> None:
    async with AsyncPostgresLockService(bank.url) as locks:
        lease = await locks.acquire("r", ttl=PATIENCE)
        order: list[int] = []

        async def wait(number: int) -> None:
            async with locks.acquire("r", ttl=PATIENCE):
                order.append(number)

        tasks = []
        for number in range(200):
            tasks.append(asyncio.ensure_future(wait(number)))
            await asyncio.sleep(0)
        await asyncio.to_thread(bank.wait_until, "SELECT waiters = 1 FROM fencing.look('r')")
        assert bank.value(f"{SESSIONS} datname = current_database()") <= 9
        await lease.release()
        await asyncio.gather(*tasks)
    assert order == sorted(order)


def test_a_release_calls_and_a_call_that_is_lost_costs_a_second(
    locks: PostgresLockService, bank: Bank
) -> None:
    for lost in (False, True):
        lease = locks.acquire("r", ttl=PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(locks.acquire, "r", ttl=PATIENCE)
            bank.wait_until("SELECT waiters = 1 FROM fencing.look('r')")
            bank.wait_until(LISTENING.replace("count(*)", "count(*) = 1"))
            if lost:
                bank.observer.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE query = 'LISTEN fencing' AND datname = current_database()"
                )
                bank.observer.execute(
                    "UPDATE fencing.lease SET expires_at = '-infinity', holder = ''"
                )
            else:
                lease.release()
            waiter.result(PATIENCE).release()


def test_nobody_is_told_anything_where_nobody_waits(locks: PostgresLockService, bank: Bank) -> None:
    with psycopg.connect(plain_url(bank.url), autocommit=True) as listener:
        listener.execute("LISTEN fencing")
        locks.acquire("r", ttl=10).release()
        listener.execute("NOTIFY fencing, 'last'")
        told = [notification.payload for notification in listener.notifies(stop_after=1)]
    assert told == ["last"]


def test_what_is_told_lets_nobody_act(bank: Bank, locks: PostgresLockService) -> None:
    with psycopg.connect(plain_url(bank.url), autocommit=True) as listener:
        listener.execute("LISTEN fencing")
        lease = locks.acquire("r", ttl=PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(locks.acquire, "r", ttl=PATIENCE)
            bank.wait_until("SELECT waiters = 1 FROM fencing.look('r')")
            lease.release()
            successor = waiter.result(PATIENCE)
        (told,) = listener.notifies(stop_after=1)
    assert successor.holder not in told.payload
    successor.release()


@pytest.fixture
def pooler(database_url: str) -> Iterator[PgBouncer]:
    with PgBouncer(database_url, pool_size=5) as pooler:
        yield pooler


def test_behind_a_pooler_one_asks_instead_of_listening(
    bank: Bank, pooler: PgBouncer, locks: PostgresLockService
) -> None:
    with PostgresLockService(pooler.address(bank.url)) as pooled:
        lease = pooled.acquire("r", ttl=PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(pooled.acquire, "r", ttl=PATIENCE)
            bank.wait_until("SELECT waiters = 1 FROM fencing.look('r')")
            lease.release()
            waiter.result(PATIENCE).release()
        assert not locks.locked("r")
    assert bank.value("SELECT count(*) FROM pg_stat_activity WHERE query = 'LISTEN fencing'") == 0

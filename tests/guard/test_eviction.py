"""Opt-in: an admission that has waited long enough ends who keeps it waiting, and nobody else."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    AsyncRedisLockService,
    Guard,
    LockNotAcquiredError,
    RedisLockService,
    StaleFenceError,
)
from tests.support.bank import Account, Bank
from tests.support.databases import plain_url
from tests.support.holders import zombie
from tests.support.processes import ChildProcess
from tests.support.scripted import ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    Zombie = Callable[[str], tuple[ChildProcess, int]]

TTL = 1.0
PATIENCE = 30.0
EVICT_AFTER = 0.2
ACTIVITY = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s AND "


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture
def guard(locks: RedisLockService, engine: Engine) -> Guard:
    return Guard(locks, engine, evict_after=EVICT_AFTER)


@pytest.fixture
def make_zombie(redis_url, redis_namespace, bank: Bank, account: int) -> Iterator[Zombie]:
    """Makes holders without any limit, stopped in an open transaction."""
    children: list[ChildProcess] = []

    def make(how: str) -> tuple[ChildProcess, int]:
        child = ChildProcess(
            zombie, redis_url, redis_namespace, bank.url, account, TTL, f"{how}, unlimited"
        )
        children.append(child)
        backend = child.wait_for("open")["pid"]
        if "busy" in how:
            bank.wait_until(f"{ACTIVITY} wait_event = 'PgSleep')", backend)
        elif "receiving" in how:
            bank.wait_until(f"{ACTIVITY} query LIKE '%%repeat%%' AND state = 'active')", backend)
        child.suspend()
        if "receiving" in how:
            bank.wait_until(f"{ACTIVITY} wait_event = 'ClientWrite')", backend)
        return child, backend

    yield make
    for child in children:
        child.close()


def withdraw(guard: Guard, engine: Engine, account: int) -> None:
    with (
        guard.acquire(f"account:{account}", ttl=PATIENCE, blocking_timeout=PATIENCE),
        Session(engine) as session,
    ):
        session.get_one(Account, account).balance -= 10
        session.commit()


@pytest.mark.parametrize("how", ["commit", "busy", "receiving"])
def test_an_idle_a_busy_and_a_stuck_zombie_are_ended_and_told(
    guard, engine, bank: Bank, account: int, make_zombie: Zombie, caplog, how: str
) -> None:
    child, backend = make_zombie(how)
    with caplog.at_level(logging.WARNING, logger="fencing"):
        withdraw(guard, engine, account)
    assert [
        record for record in caplog.messages if f"ended PostgreSQL backends {backend}" in record
    ]
    bank.wait_until_gone(backend)
    child.resume()
    if how == "commit":
        child.tell("go on")
    assert child.wait_for("refused")["error"] in ("StaleFenceError", "LeaseExpiredError")
    assert bank.balance(account) == 90


async def test_the_async_guard_evicts_alike(
    bank: Bank, account: int, make_zombie: Zombie, redis_url, redis_namespace
) -> None:
    _, backend = make_zombie("commit")
    engine = create_async_engine(bank.url)
    locks = AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace)
    async with (
        AsyncGuard(locks, engine, evict_after=EVICT_AFTER) as guard,
        guard.acquire(f"account:{account}", ttl=PATIENCE, blocking_timeout=PATIENCE),
        AsyncSession(engine) as session,
    ):
        (await session.get_one(Account, account)).balance -= 10
        await session.commit()
    await engine.dispose()
    bank.wait_until_gone(backend)
    assert bank.balance(account) == 90


def test_a_holder_of_another_resource_and_who_presents_nothing_are_left_alone(
    guard, engine, bank: Bank, account: int, make_zombie: Zombie, make_engine
) -> None:
    other = bank.new_account()
    other_engine = make_engine()
    elsewhere = Guard(guard.locks, other_engine)
    _, backend = make_zombie("commit")
    with (
        elsewhere.acquire(f"account:{other}", ttl=PATIENCE),
        Session(other_engine) as session,
        psycopg.connect(plain_url(bank.url)) as bystander,
    ):
        session.get_one(Account, other).balance -= 1
        session.flush()
        bystander.execute("SELECT * FROM accounts WHERE id = %s", (account,))
        withdraw(guard, engine, account)
        bank.wait_until_gone(backend)
        bystander.execute("SELECT 1")
        session.commit()
    assert bank.balance(other) == 99


def test_whoever_is_evicted_under_a_lease_that_looks_good_is_told_that_he_was_overtaken(
    make_engine, bank: Bank, account: int
) -> None:
    locks = ScriptedLocks()  # grants everybody
    engine, other = make_engine(), make_engine()
    holder, successor = Guard(locks, engine), Guard(locks, other, evict_after=EVICT_AFTER)
    with holder.acquire(f"account:{account}", ttl=60) as lease, Session(engine) as session:
        session.get_one(Account, account).balance = 0
        session.flush()
        token = successor.acquire(f"account:{account}", ttl=60).token
        with pytest.raises(StaleFenceError) as caught:
            session.execute(text("SELECT 1"))
    assert (caught.value.current_token, lease.lost) == (token, True)
    assert bank.balance(account) == 100


def test_an_admission_that_does_not_wait_evicts_nobody(
    engine, bank: Bank, account: int, make_zombie: Zombie
) -> None:
    _, backend = make_zombie("commit")
    guard = Guard(ScriptedLocks(2), engine, evict_after=EVICT_AFTER)
    assert guard.try_acquire(f"account:{account}", ttl=5) is None
    assert bank.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", backend) == 1


@pytest.fixture
def stranger(bank: Bank, account: int) -> Iterator[str]:
    """Address of the bank for a role that shares nothing with the others; and no superuser."""
    name = f"stranger_{account}"
    with psycopg.connect(plain_url(bank.url), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        admin.execute(
            sql.SQL("GRANT pg_read_all_stats, pg_read_all_data TO {}").format(sql.Identifier(name))
        )
        yield make_url(bank.url).set(username=name).render_as_string(hide_password=False)
        admin.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def test_who_may_not_end_them_waits_and_is_told_why(
    bank: Bank, account: int, make_zombie: Zombie, make_engine, locks, stranger: str
) -> None:
    _, backend = make_zombie("commit")
    guard = Guard(locks, make_engine(stranger), evict_after=EVICT_AFTER)
    with pytest.raises(LockNotAcquiredError) as late:
        guard.acquire(f"account:{account}", ttl=PATIENCE, blocking_timeout=TTL + 2.0)
    assert late.value.blocked_by == (backend,)
    assert "pg_signal_backend" in late.value.__notes__[0]
    assert bank.value("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", backend) == 1


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), True, "1"])
def test_what_is_no_time_to_wait_is_refused(locks, engine, seconds) -> None:
    with pytest.raises((TypeError, ValueError), match="evict_after"):
        Guard(locks, engine, evict_after=seconds)

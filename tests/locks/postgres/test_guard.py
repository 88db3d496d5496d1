"""A guard over the lock service in its own database: what is admitted, where, and at what price."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    AsyncPostgresLockService,
    FencingUsageError,
    Guard,
    LockNotAcquiredError,
    PostgresLockService,
    StaleFenceError,
    UnfencedWriteError,
    postgres,
)
from fencing.embedded.proxy import TcpProxy
from fencing.postgres import PsycopgGuard
from tests.support.bank import Account, Bank
from tests.support.databases import DatabaseFactory, plain_url
from tests.support.holders import zombie
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

TTL = 1.5
"""Of holders that are processes, in seconds: a busy machine may do nothing for a second."""

PATIENCE = 30.0
EVICT_AFTER = 0.2


def withdraw(engine: Engine, account: int) -> None:
    with Session(engine) as session:
        session.get_one(Account, account).balance -= 10
        session.commit()


# One transaction


@pytest.fixture
def proxy(bank: Bank) -> Iterator[TcpProxy]:
    with TcpProxy.to(bank.url) as proxy:
        yield proxy


def round_trips(proxy: TcpProxy) -> int:
    return proxy.commands("Q", "S")


def transactions(bank: Bank) -> int:
    """How many transactions have written so far."""
    return int(bank.value("SELECT CAST(CAST(pg_current_xact_id() AS text) AS bigint)"))


def test_an_acquisition_is_one_round_trip_and_one_transaction_admission_included(
    proxy: TcpProxy, make_engine: Any, bank: Bank, resource: str
) -> None:
    engine = make_engine(proxy.url)
    with PostgresLockService(proxy.url) as locks:
        guard = Guard(locks, engine)
        guard.acquire(resource, ttl=10).release()
        proxy.reset_counts()
        before = transactions(bank)
        lease = guard.acquire(resource, ttl=10)
        after = transactions(bank)
        assert round_trips(proxy) == 1
        assert after - before == 2  # ours, and that of looking
        assert lease.admitted
        assert bank.mark(resource) == (lease.token, lease.holder)
        lease.release()
        assert round_trips(proxy) == 2


def test_several_are_one_round_trip_too(proxy: TcpProxy, make_engine: Any, bank: Bank) -> None:
    names = [f"account:{bank.new_account()}" for _ in range(3)]
    with PostgresLockService(proxy.url) as locks:
        guard = Guard(locks, make_engine(proxy.url))
        guard.acquire_all(names, ttl=10).release()
        proxy.reset_counts()
        with guard.acquire_all(names, ttl=10) as group:
            assert round_trips(proxy) == 1
            assert [bank.mark(each.resource) for each in group] == [
                (each.token, each.holder) for each in group
            ]


async def test_the_async_guard_pays_no_more(proxy: TcpProxy, bank: Bank, resource: str) -> None:
    engine = create_async_engine(proxy.url)
    async with AsyncPostgresLockService(proxy.url) as locks, AsyncGuard(locks, engine) as guard:
        await (await guard.acquire(resource, ttl=10)).release()
        proxy.reset_counts()
        lease = await guard.acquire(resource, ttl=10)
        assert round_trips(proxy) == 1
        assert bank.mark(resource) == (lease.token, lease.holder)
        await lease.release()
    await engine.dispose()


def test_the_guard_without_sqlalchemy_pays_no_more(
    proxy: TcpProxy, bank: Bank, account: int, resource: str
) -> None:
    with PostgresLockService(proxy.url) as locks, PsycopgGuard(locks, plain_url(bank.url)) as guard:
        guard.acquire(resource, ttl=10).release()
        proxy.reset_counts()
        with guard.acquire(resource, ttl=10) as lease:
            assert round_trips(proxy) == 1
            with (
                psycopg.connect(plain_url(bank.url)) as connection,
                postgres.transaction(connection, lease),
            ):
                connection.execute("UPDATE accounts SET balance = 0 WHERE id = %s", [account])
    assert bank.balance(account) == 0


# What it is for


def test_work_under_a_lease_is_done_and_a_stale_holder_s_is_refused(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
) -> None:
    with guard.acquire(resource, ttl=PATIENCE) as lease:
        withdraw(engine, account)
        assert guard.locks.force_release(resource)
        with guard.locks.acquire(resource, ttl=PATIENCE) as successor:
            assert successor.token == lease.token + 1
            with pytest.raises(StaleFenceError):
                withdraw(engine, account)
        assert lease.lost
    assert bank.balance(account) == 90


async def test_the_async_forms_do_alike(bank: Bank, account: int, resource: str) -> None:
    engine = create_async_engine(bank.url)
    async with AsyncPostgresLockService.from_engine(engine) as locks:
        guard = AsyncGuard(locks, engine)
        async with guard.acquire(resource, ttl=PATIENCE), AsyncSession(engine) as session:
            (await session.get_one(Account, account)).balance -= 10
            await session.commit()
        await guard.aclose()
    await engine.dispose()
    assert bank.balance(account) == 90


def test_an_admitted_lease_is_never_given_another_token(guard: Guard, resource: str) -> None:
    with guard.acquire(resource, ttl=10) as lease:
        token = lease.token
        with pytest.raises(FencingUsageError):
            guard.locks.raise_token(lease, floor=500)
        assert lease.token == token


def test_a_token_that_is_raised_is_admitted_with_that(
    locks: PostgresLockService, bank: Bank, resource: str
) -> None:
    with locks.acquire(resource, ttl=10) as lease:
        locks.raise_token(lease, floor=500)
        assert bank.mark(resource) == (lease.token, lease.holder) == (501, lease.holder)


def test_a_fence_that_was_raised_is_passed(guard: Guard, bank: Bank, resource: str) -> None:
    bank.raise_mark(resource, 4000)
    with guard.acquire(resource, ttl=10) as lease:
        assert lease.token == 4001


def test_pruned_fences_and_forgotten_leases_leave_their_tokens_behind(
    guard: Guard, own_bank: Bank
) -> None:
    with PostgresLockService(own_bank.url) as locks:
        locks.acquire("r", ttl=10, floor=700).release()
        own_bank.observer.execute(
            "UPDATE fencing.fence SET admitted_at = admitted_at - interval '2 days'"
        )
        assert own_bank.value("SELECT pruned FROM fencing.prune('1 day')") == 1
        assert own_bank.value("SELECT fencing.forget_leases('1 day')") == 1
        assert own_bank.value("SELECT count(*) FROM fencing.lease") == 0
        with locks.acquire("r", ttl=10) as lease:
            assert lease.token == 702
            own_bank.observer.execute(
                "UPDATE fencing.fence SET admitted_at = admitted_at - interval '2 days'"
            )
            assert own_bank.observer.execute(
                "SELECT pruned, busy FROM fencing.prune('1 day')"
            ).fetchone() == (0, 1)
            assert own_bank.value("SELECT fencing.forget_leases('1 day')") == 0


# Holders that die, and holders that sleep


@pytest.fixture
def make_zombie(bank: Bank, account: int) -> Iterator[Callable[[], tuple[ChildProcess, int]]]:
    """A holder without any limit, stopped in an open transaction."""
    children: list[ChildProcess] = []

    def make() -> tuple[ChildProcess, int]:
        child = ChildProcess(zombie, bank.url, "", bank.url, account, TTL, "commit, unlimited")
        children.append(child)
        backend = child.wait_for("open")["pid"]
        child.suspend()
        return child, backend

    yield make
    for child in children:
        child.close()


def test_a_holder_that_was_killed_is_taken_over_when_its_lease_has_run_out(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str, make_zombie: Any
) -> None:
    child, _ = make_zombie()
    child.kill()
    with guard.acquire(resource, ttl=PATIENCE, blocking_timeout=PATIENCE) as lease:
        assert lease.token == 2
        withdraw(engine, account)
    assert bank.balance(account) == 90


def test_a_holder_that_sleeps_in_a_transaction_is_evicted(
    locks: PostgresLockService, engine: Engine, bank: Bank, account: int, resource: str,
    make_zombie: Any,
) -> None:  # fmt: skip
    child, backend = make_zombie()
    guard = Guard(locks, engine, evict_after=EVICT_AFTER)
    with guard.acquire(resource, ttl=PATIENCE, blocking_timeout=PATIENCE) as lease:
        assert bank.mark(resource) == (lease.token, lease.holder)
        bank.wait_until_gone(backend)
        withdraw(engine, account)
    child.resume()
    child.tell("go on")
    assert child.wait_for("refused")["error"] in ("StaleFenceError", "LeaseExpiredError")
    assert bank.balance(account) == 90


async def test_the_async_guard_evicts_alike(
    bank: Bank, account: int, resource: str, make_zombie: Any
) -> None:
    _, backend = make_zombie()
    engine = create_async_engine(bank.url)
    locks = AsyncPostgresLockService(bank.url)
    async with (
        AsyncGuard(locks, engine, evict_after=EVICT_AFTER) as guard,
        guard.acquire(resource, ttl=PATIENCE, blocking_timeout=PATIENCE),
        AsyncSession(engine) as session,
    ):
        bank.wait_until_gone(backend)
        (await session.get_one(Account, account)).balance -= 10
        await session.commit()
    await engine.dispose()
    assert bank.balance(account) == 90


def test_several_at_once_evict_alike(
    locks: PostgresLockService, engine: Engine, bank: Bank, account: int, resource: str,
    make_zombie: Any,
) -> None:  # fmt: skip
    _, backend = make_zombie()
    other = f"account:{bank.new_account()}"
    guard = Guard(locks, engine, evict_after=EVICT_AFTER)
    with guard.acquire_all([other, resource], ttl=PATIENCE, blocking_timeout=PATIENCE):
        bank.wait_until_gone(backend)
        withdraw(engine, account)
    assert bank.balance(account) == 90


def test_without_eviction_who_sleeps_is_named_and_nothing_is_held(
    guard: Guard, bank: Bank, resource: str, make_zombie: Any
) -> None:
    _, backend = make_zombie()
    bank.wait_until("SELECT NOT held FROM fencing.look(%s)", resource)
    assert guard.try_acquire(resource, ttl=10) is None
    with pytest.raises(LockNotAcquiredError) as caught:
        guard.acquire(resource, ttl=10, blocking_timeout=0.3)
    assert caught.value.blocked_by == (backend,)
    with pytest.raises(LockNotAcquiredError) as caught:
        guard.acquire_all([resource], ttl=10, blocking=False)
    assert caught.value.blocked_by == (backend,)
    assert not guard.locks.locked(resource)


def test_a_service_without_a_guard_waits_for_open_transactions_itself(
    locks: PostgresLockService, bank: Bank, resource: str, make_zombie: Any
) -> None:
    child, backend = make_zombie()
    bank.wait_until("SELECT NOT held FROM fencing.look(%s)", resource)
    assert locks.try_acquire(resource, ttl=10) is None
    with pytest.raises(LockNotAcquiredError) as caught:
        locks.acquire(resource, ttl=10, blocking_timeout=0.3)
    assert caught.value.blocked_by == (backend,)
    assert not locks.locked(resource)
    child.kill()
    bank.kill_backend(backend)
    with locks.acquire(resource, ttl=10, blocking_timeout=PATIENCE) as lease:
        assert bank.mark(resource) == (lease.token, lease.holder)


# Other databases


@pytest.fixture
def branch(database_factory: DatabaseFactory) -> Iterator[Bank]:
    """A second guarded bank."""
    with database_factory.fenced() as url:
        branch = Bank(url)
        yield branch
        branch.close()


def test_in_another_database_it_is_admitted_as_ever(
    locks: PostgresLockService, engine: Engine, make_engine: Any, bank: Bank, branch: Bank,
    account: int, resource: str,
) -> None:  # fmt: skip
    elsewhere = make_engine(branch.url)
    guard = Guard(locks, engine, elsewhere)
    branch.raise_mark(resource, 300)
    with guard.acquire(resource, ttl=10) as lease:
        assert lease.token == 301  # raised before it was final
        assert bank.mark(resource) == branch.mark(resource) == (lease.token, lease.holder)
        for each in (engine, elsewhere):
            withdraw(each, account)
    only = Guard(locks, elsewhere)
    with only.acquire(resource, ttl=10) as lease:
        assert branch.mark(resource) == (lease.token, lease.holder)


def test_a_physical_copy_is_taken_for_the_original_and_refuses(
    locks: PostgresLockService, make_engine: Any, bank: Bank, branch: Bank, account: int,
    resource: str,
) -> None:  # fmt: skip
    identity = bank.value("SELECT fencing.identity()")
    assert identity != branch.value("SELECT fencing.identity()")
    branch.observer.execute(
        "CREATE OR REPLACE FUNCTION fencing.identity() RETURNS text LANGUAGE sql STABLE "
        f"SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$ SELECT '{identity}' $$"
    )
    elsewhere = make_engine(branch.url)
    with Guard(locks, elsewhere).acquire(resource, ttl=10):  # noqa: SIM117 - what is refused
        with pytest.raises(UnfencedWriteError, match="before this database had admitted it"):
            withdraw(elsewhere, account)
    assert branch.mark(resource) is None
    assert branch.balance(account) == 100

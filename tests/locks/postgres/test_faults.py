"""Cancellations, crashes, settings and rights; lost answers are in tests/contract/test_postgres."""

from __future__ import annotations

import asyncio
import random
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy import make_url

from fencing import (
    AsyncPostgresLockService,
    GuardNotInstalledError,
    LeaseLostError,
    LockServiceError,
    PostgresLockService,
)
from fencing.clock import now
from fencing.core.slots import NoSlotError
from fencing.embedded import PostgresProcess
from fencing.embedded.asking import until
from fencing.embedded.proxy import TcpProxy
from fencing.locks.postgres.connections import Connections
from fencing.locks.postgres.trouble import trouble_of
from fencing.migration import install
from fencing.schema import ddl
from fencing.schema.names import holder_name
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bank import Bank

PATIENCE = 60.0
TTL = 2.0
"""Of a lease that is kept alive, in seconds: a busy machine may do nothing for a second."""

HELD = "SELECT count(*) FROM fencing.lease WHERE expires_at > clock_timestamp()"


@pytest.fixture
def bank(own_bank: Bank) -> Bank:
    """Of this test's own, to change settings of."""
    return own_bank


async def test_cancellations_at_random_leave_no_orphans(bank: Bank) -> None:
    cancelled = batch = 0
    with TcpProxy.to(bank.url) as proxy:
        proxy.delay(0.002)
        async with AsyncPostgresLockService(proxy.url) as locks:

            async def hold(resource: str) -> None:
                await (await locks.acquire(resource, ttl=60)).release()

            while cancelled < 200:  # that came in the middle, however loaded the machine is
                batch += 1
                tasks = [asyncio.ensure_future(hold(f"{batch}:{n}")) for n in range(10)]
                for task in random.sample(tasks, len(tasks)):
                    await asyncio.sleep(random.uniform(0, 0.003))
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    assert outcome is None or isinstance(outcome, asyncio.CancelledError)
                    cancelled += outcome is not None
    bank.wait_until(
        "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'active' "
        "AND pid <> pg_backend_pid() AND datname = current_database())"
    )
    assert bank.value(HELD) == 0


async def test_waiters_that_are_cancelled_leave_no_place_and_take_no_lock(bank: Bank) -> None:
    async with AsyncPostgresLockService(bank.url) as locks:
        lease = await locks.acquire("r", ttl=60)
        for fair in (False, True):
            tasks = [
                asyncio.ensure_future(locks.acquire("r", ttl=60, fair=fair)._begin())
                for _ in range(5)
            ]
            await asyncio.to_thread(bank.wait_until, "SELECT waiters > 0 FROM fencing.look('r')")
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert (await locks.inspect("r")).waiters == 0
        await lease.release()
        assert not await locks.locked("r")


# The server goes away


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[PostgresProcess]:
    """One of this test's own."""
    programs = request.config.getoption("--postgres-bin")
    with PostgresProcess(bin_directory=programs) as server:
        install(server.url)
        yield server


def test_a_crash_loses_no_lease_and_those_who_wait_go_on(server: PostgresProcess) -> None:
    with PostgresLockService(server.url) as locks, PostgresLockService(server.url) as others:
        lease = locks.acquire("r", ttl=PATIENCE)
        with ThreadPoolExecutor(1) as pool:
            server.kill()
            with pytest.raises(LockServiceError, match="'r'"):
                locks.inspect("r")
            server.start()
            assert lease.owned()
            assert others.try_acquire("r") is None
            waiter = pool.submit(others.acquire, "r", ttl=PATIENCE)
            while not locks.inspect("r").waiters:
                pass
            server.stop()
            server.start()
            lease.release()
            successor = _granted(waiter, others)
        assert successor.token > lease.token
        successor.release()


def test_a_standby_says_so_and_once_promoted_goes_on_where_it_was(server: PostgresProcess) -> None:
    with PostgresLockService(server.url) as locks:
        lease = locks.acquire("r", ttl=PATIENCE)
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        with pytest.raises(LockServiceError, match="read-only, a standby"):
            locks.acquire("other", ttl=PATIENCE)
        with psycopg.connect(plain_url(server.url), autocommit=True) as connection:
            connection.execute("SELECT pg_promote()")
        assert lease.owned()
        assert locks.try_acquire("r") is None
        lease.release()
        with locks.acquire("r", ttl=PATIENCE) as successor:
            assert successor.token == lease.token + 1


def _granted(waiter: Any, others: PostgresLockService) -> Any:
    """Who was asking just while there was no server may have been told so."""
    try:
        return waiter.result(PATIENCE)
    except LockServiceError:
        return others.acquire("r", ttl=PATIENCE)


# Settings and rights


@pytest.fixture
def role(bank: Bank) -> Iterator[str]:
    """A role that shares nothing with the others."""
    name = f"app_{uuid.uuid4().hex}"
    quoted = sql.Identifier(name)
    bank.observer.execute(sql.SQL("CREATE ROLE {} LOGIN").format(quoted))
    yield name
    bank.observer.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(quoted))


@pytest.fixture
def as_role(bank: Bank, role: str) -> str:
    return make_url(bank.url).set(username=role).render_as_string(hide_password=False)


@pytest.mark.parametrize(
    "setting",
    [
        "default_transaction_isolation = 'serializable'",
        "default_transaction_read_only = on",
        "statement_timeout = '10s'",
        "synchronous_commit = off",
        "search_path = 'nowhere'",
    ],
)
def test_whatever_a_role_has_by_default_leases_are_granted(
    bank: Bank, role: str, as_role: str, setting: str
) -> None:
    bank.observer.execute(f"ALTER ROLE {role} SET {setting}".encode())
    with PostgresLockService(as_role) as locks:
        lease = locks.acquire("r", ttl=60)
        lease.renew(90)
        assert bank.mark("r") == (lease.token, lease.holder)
        assert locks.try_acquire("r") is None
        lease.release()
        with locks.acquire_all(["r", "s"], ttl=60) as group:
            assert group[0].token == lease.token + 1


def test_an_application_s_role_sees_no_holder_but_recognises_its_own(
    bank: Bank, role: str, as_role: str
) -> None:
    with PostgresLockService(as_role) as locks, PostgresLockService(bank.url) as others:
        own, foreign = locks.acquire("own", ttl=60), others.acquire("foreign", ttl=60)
        assert own.owned()
        assert locks.inspect("own").holder == own.holder
        found = locks.inspect("foreign").holder
        assert found == foreign.holder != own.holder
        assert str(found) == holder_name(foreign.holder)
        assert [state.resource for state in locks.scan()] == ["foreign", "own"]
        assert [state.resource for state in locks.scan("o")] == ["own"]
    with psycopg.connect(plain_url(as_role)) as connection:
        for table in ("lease", "waiter", "fence"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT * FROM fencing.{table}".encode())
            connection.rollback()


def test_a_role_without_rights_is_told_what_it_needs(bank: Bank, as_role: str) -> None:
    bank.observer.execute("REVOKE USAGE ON SCHEMA fencing FROM PUBLIC")
    with PostgresLockService(as_role) as locks:
        with pytest.raises(LockServiceError, match="lacks a right") as caught:
            locks.acquire("r", ttl=60)
        assert caught.value.resource == "r"


def test_a_database_without_the_schema_says_how_to_install_it(database: str) -> None:
    with (
        PostgresLockService(database) as locks,
        pytest.raises(GuardNotInstalledError, match="fencing install"),
    ):
        locks.acquire("r", ttl=60)


def test_a_schema_that_is_installed_anew_is_found_again(bank: Bank) -> None:
    with PostgresLockService(bank.url) as locks:
        for _ in range(2):
            locks.acquire("r", ttl=60).release()
        with bank.observer.transaction():
            bank.observer.execute("DROP TABLE accounts, transfers")
            for statement in [*ddl.uninstall(), *ddl.install()]:
                bank.observer.execute(statement.encode())
        with locks.acquire("r", ttl=60) as lease:
            assert lease.token == 1
        assert not locks.locked("r")


def test_too_few_connections_are_trouble_and_not_a_lock_that_is_held(
    bank: Bank, role: str, as_role: str
) -> None:
    bank.observer.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0".encode())
    with PostgresLockService(as_role) as locks, pytest.raises(LockServiceError, match="too many"):
        locks.acquire("r", blocking=False)


def test_a_table_that_is_locked_keeps_nobody_longer_than_he_said(
    bank: Bank, locks: PostgresLockService
) -> None:
    with psycopg.connect(plain_url(bank.url)) as connection:
        connection.execute("LOCK TABLE fencing.lease IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(LockServiceError, match="did not answer in time"):
            locks.acquire("r", ttl=0.5, blocking_timeout=0.5)
    # A server that is slow to see that its time is up may have granted it yet, for its ttl.
    locks.acquire("r", ttl=60, blocking_timeout=PATIENCE).release()


def test_one_connection_is_enough_for_all(bank: Bank) -> None:
    with PostgresLockService(bank.url, max_connections=1) as locks, ThreadPoolExecutor(8) as pool:
        leases = list(pool.map(lambda n: locks.acquire(f"r{n}", ttl=60), range(40)))
        list(pool.map(lambda lease: lease.release(), leases))
    assert bank.value(HELD) == 0


@pytest.mark.parametrize("others_are_answered", [True, False])
def test_who_gets_no_connection_knows_whether_others_were_answered(
    bank: Bank, *, others_are_answered: bool
) -> None:
    connections = Connections(plain_url(bank.url), 1)
    slots = connections.slots
    go_on = threading.Event()

    def use(end: float) -> None:
        with connections.link(end) as link:
            go_on.wait(PATIENCE)
            if not others_are_answered:
                link.close()

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(use, now() + PATIENCE)
        until(lambda: slots.taken == 1, "nobody has a connection")
        second = pool.submit(hold_on, connections, told := threading.Event())
        until(lambda: len(slots._waiting) == 1, "nobody waits")
        late = pool.submit(use, now() + 2)
        until(lambda: len(slots._waiting) == 2, "only one waits")
        go_on.set()
        first.result()
        with pytest.raises(NoSlotError) as caught:
            late.result()
        assert caught.value.busy is others_are_answered
        assert trouble_of(caught.value, at=0.0).busy is others_are_answered
        told.set()
        second.result()
    connections.close_idle()


def hold_on(connections: Connections, told: threading.Event) -> None:
    with connections.link(now() + PATIENCE):
        told.wait(PATIENCE)


def test_a_lease_that_is_kept_alive_outlives_its_ttl(locks: PostgresLockService) -> None:
    lease = locks.acquire("r", ttl=TTL, keepalive=True)
    assert not lease.wait_lost(1.2 * TTL)
    assert lease.owned()
    lease.release()
    assert not locks.locked("r")


def test_a_lease_that_the_server_s_clock_has_ended_is_not_revived(
    bank: Bank, locks: PostgresLockService
) -> None:
    lease = locks.acquire("r", ttl=60)
    bank.observer.execute("UPDATE fencing.lease SET expires_at = clock_timestamp()")
    with pytest.raises(LeaseLostError, match="nobody holds"):
        lease.renew()
    assert not locks.locked("r")


def test_leases_that_are_kept_alive_are_renewed_in_one_statement(
    bank: Bank, locks: PostgresLockService
) -> None:
    leases = [locks.acquire(f"r{n}", ttl=60) for n in range(3)]
    locks.force_release("r1")
    outcomes = locks.renew_many([(lease, 90.0) for lease in leases], within=5)
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "NoneType",
        "LeaseLostError",
        "NoneType",
    ]
    assert leases[0].remaining > 80
    assert leases[1].lost

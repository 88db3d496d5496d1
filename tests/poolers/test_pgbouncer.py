"""Behind PgBouncer in transaction mode everything holds: nothing of ours outlives a transaction."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    CommitOutcomeUnknownError,
    Guard,
    LeaseExpiredError,
    LockNotAcquiredError,
    StaleFenceError,
    UnfencedWriteError,
    postgres,
)
from fencing.hooks.driver import driver_of
from fencing.postgres import PsycopgGuard
from tests.poolers.conftest import UNPREPARED
from tests.support.bank import Bank, BareAccount, await_last_words
from tests.support.databases import plain_url
from tests.support.writes import WRITES

if TYPE_CHECKING:
    from fencing.embedded.pgbouncer import PgBouncer
    from tests.support.writes import Write

SETTINGS = (
    "lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout",
    "client_connection_check_interval", "tcp_user_timeout", "synchronous_commit",
)  # fmt: skip


def withdraw(session: Session, account: int) -> None:
    session.get_one(BareAccount, account).balance -= 10
    session.commit()


class TestGuarding:
    def test_it_is_a_pooler(self, pooled: Engine, pooler: PgBouncer) -> None:
        """Or everything below would prove nothing."""
        assert pooled.url.port == pooler.port
        with pooled.connect() as connection:
            server = connection.scalar(text("SELECT inet_server_port()"))
        assert server != pooler.port

    @pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
    def test_every_write_is_refused_without_a_lease_and_passes_with_it(
        self, pooled_guard: Guard, pooled: Engine, bank: Bank, account, resource, write: Write
    ) -> None:
        before = bank.state(account)
        with Session(pooled) as session, pytest.raises(UnfencedWriteError):
            write(session, account)
        assert bank.state(account) == before
        with pooled_guard.acquire(resource), Session(pooled) as session:
            write(session, account)
            session.commit()
        assert bank.state(account) != before

    def test_an_overtaken_holder_is_refused(
        self, pooled_guard: Guard, pooled: Engine, bank: Bank, account, resource
    ) -> None:
        with pooled_guard.acquire(resource), Session(pooled) as session:
            bank.admit(resource, 2)
            with pytest.raises(StaleFenceError):
                withdraw(session, account)
        assert bank.balance(account) == 100

    def test_an_admission_waits_for_an_open_transaction_and_names_it(
        self, pooled_guard: Guard, pooled: Engine, resource
    ) -> None:
        with pooled_guard.acquire(resource), Session(pooled) as session:
            pid = session.scalar(text("SELECT pg_backend_pid()"))
            with (
                ThreadPoolExecutor(1) as threads,
                pytest.raises(LockNotAcquiredError) as blocked,
            ):
                threads.submit(pooled_guard.acquire, resource, blocking_timeout=0.1).result()
        assert blocked.value.blocked_by == (pid,)

    async def test_under_asyncio_alike(
        self, async_pooled_guard: AsyncGuard, async_pooled: AsyncEngine, bank, account, resource
    ) -> None:
        async with AsyncSession(async_pooled) as session:
            with pytest.raises(UnfencedWriteError):
                await session.run_sync(withdraw, account)
            await session.rollback()
            async with async_pooled_guard.acquire(resource):
                await session.run_sync(withdraw, account)
                assert bank.balance(account) == 90
                bank.admit(resource, 2)
                with pytest.raises(StaleFenceError):
                    await session.run_sync(withdraw, account)
        assert bank.balance(account) == 90

    def test_many_clients_on_few_connections_lose_no_update(
        self, pooler: PgBouncer, bank: Bank, make_engine, redis_url, redis_namespace, account
    ) -> None:
        from fencing import RedisLockService

        engine = make_engine(pooler.address(bank.url), connect_args=UNPREPARED)
        with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            guard = Guard(locks, engine)

            def work(_: int) -> None:
                with guard.acquire(f"account:{account}"), Session(engine) as session:
                    withdraw(session, account)

            with ThreadPoolExecutor(8) as threads:
                list(threads.map(work, range(40)))
        assert bank.balance(account) == 100 - 40 * 10


class TestNothingLeaks:
    """Two clients on one connection to the server, one after the other."""

    @pytest.fixture
    def first(self, narrow: PgBouncer, bank: Bank, make_engine) -> Engine:
        return make_engine(narrow.address(bank.url), connect_args=UNPREPARED)

    @pytest.fixture
    def second(self, narrow: PgBouncer, bank: Bank):
        address = plain_url(narrow.address(bank.url))
        with psycopg.connect(address, autocommit=True, prepare_threshold=None) as connection:
            yield connection

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    def test_the_next_client_finds_no_claim_and_no_limit(
        self, locks, first: Engine, second, bank: Bank, account, resource, end
    ) -> None:
        query = "SELECT current_setting(%s)"
        before = {name: second.execute(query, [name]).fetchone() for name in SETTINGS}
        guard = Guard(locks, first)
        with guard.acquire(resource, ttl=60), Session(first) as session:
            session.get_one(BareAccount, account).balance -= 10
            session.flush()
            pid = session.scalar(text("SELECT pg_backend_pid()"))
            limit = "client_connection_check_interval"
            assert session.scalar(text(f"SHOW {limit}")) != before[limit][0]
            getattr(session, end)()
        assert second.execute("SELECT pg_backend_pid()").fetchone() == (pid,)
        claim = second.execute("SELECT current_setting('fencing.claim', true)").fetchone()
        assert not claim[0]
        after = {name: second.execute(query, [name]).fetchone() for name in SETTINGS}
        assert after == before
        locks_left = "SELECT count(*) FROM pg_locks WHERE pid = %s AND locktype = 'advisory'"
        assert bank.value(locks_left, pid) == 0

    def test_the_next_client_does_not_write_under_the_lease_of_the_first(
        self, locks, first: Engine, second, bank: Bank, account, resource
    ) -> None:
        guard = Guard(locks, first)
        with guard.acquire(resource, ttl=60), Session(first) as session:
            withdraw(session, account)
            with pytest.raises(psycopg.Error) as refusal:
                second.execute("UPDATE accounts SET balance = 0 WHERE id = %s", [account])
            assert refusal.value.sqlstate == "ZF002"
            withdraw(session, account)
        assert bank.balance(account) == 80

    def test_an_admission_inside_a_transaction_needs_a_second_connection_of_the_pooler(
        self, locks, impatient: PgBouncer, bank: Bank, make_engine, resource
    ) -> None:
        """There is none: PgBouncer gives up after its query_wait_timeout, whatever ours is."""
        only = make_engine(impatient.address(bank.url), connect_args=UNPREPARED)
        guard = Guard(locks, only)
        with Session(only) as session:
            session.execute(text("SELECT 1"))
            with pytest.raises(DBAPIError, match="query_wait_timeout"):
                guard.acquire(resource, blocking_timeout=0.1)
            session.commit()
            with guard.acquire(resource):
                session.execute(text("SELECT 1"))


class TestZombies:
    def test_the_limits_end_it_and_the_pooler_goes_on(
        self, pooled_guard: Guard, pooled: Engine, bank: Bank, account, resource
    ) -> None:
        with Session(pooled) as session:
            with pooled_guard.acquire(resource, ttl=1.0):
                session.get_one(BareAccount, account).balance -= 10
                session.flush()
                bank.wait_until_gone(session.scalar(text("SELECT pg_backend_pid()")))
                await_last_words(driver_of(session.connection()))
                with pytest.raises(LeaseExpiredError):
                    session.commit()
            session.rollback()
            with pooled_guard.acquire(resource):
                withdraw(session, account)
        assert bank.balance(account) == 90

    def test_eviction_ends_it_and_only_its_connection_to_the_server(
        self, locks, pooled_guard: Guard, pooled: Engine, bank: Bank, account, resource, caplog
    ) -> None:
        impatient = Guard(locks, pooled, evict_after=0.1)

        def take_over() -> None:
            with impatient.acquire(resource, ttl=60), Session(pooled) as session:
                withdraw(session, account)

        with Session(pooled) as zombie, pooled_guard.acquire(resource, ttl=60):
            zombie.get_one(BareAccount, account).balance = 0
            zombie.flush()
            pid = zombie.scalar(text("SELECT pg_backend_pid()"))
            with (
                caplog.at_level(logging.WARNING, logger="fencing"),
                ThreadPoolExecutor(1) as threads,
            ):
                threads.submit(take_over).result()
            assert [m for m in caplog.messages if f"ended PostgreSQL backends {pid}" in m]
            await_last_words(driver_of(zombie.connection()))
            with pytest.raises(StaleFenceError):
                zombie.commit()
            with pooled_guard.suspended(), Session(pooled) as session:
                assert session.scalar(text("SELECT 1")) == 1
        assert bank.balance(account) == 90

    @pytest.mark.parametrize("act", ["statement", "commit"])
    @pytest.mark.parametrize("overtaken", [True, False])
    def test_who_was_ended_under_a_good_lease_learns_whether_it_was_overtaken(
        self, pooled_guard: Guard, pooled: Engine, bank: Bank, account, resource, act, overtaken
    ) -> None:
        """PgBouncer passes the server's last words on, and adds its own, which may hide them."""
        with pooled_guard.acquire(resource), Session(pooled) as session:
            session.get_one(BareAccount, account).balance = 0
            session.flush()
            pid = session.scalar(text("SELECT pg_backend_pid()"))
            bank.kill_session(driver_of(session.connection()), pid)
            if overtaken:
                bank.admit(resource, 2)
            with pytest.raises(StaleFenceError if overtaken else DBAPIError) as ended:
                session.commit() if act == "commit" else session.execute(text("SELECT 1"))
            if not overtaken:
                assert ended.value.connection_invalidated
            session.rollback()
        assert bank.balance(account) == 100

    @pytest.mark.parametrize("overtaken", [True, False])
    def test_a_block_of_psycopg_alike(
        self, locks, pooler: PgBouncer, bank: Bank, account, resource, overtaken
    ) -> None:
        address = plain_url(pooler.address(bank.url))
        with (
            PsycopgGuard(locks, bank.plain_url) as guard,
            psycopg.connect(address, autocommit=True, prepare_threshold=None) as connection,
            guard.acquire(resource) as lease,
        ):
            error = StaleFenceError if overtaken else psycopg.Error
            with pytest.raises(error), postgres.transaction(connection, lease):  # noqa: PT012 - the block is the point
                connection.execute("UPDATE accounts SET balance = 0 WHERE id = %s", [account])
                (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
                bank.kill_session(connection, pid)
                if overtaken:
                    bank.admit(resource, 2)
        assert bank.balance(account) == 100

    def test_a_commit_by_hand_that_only_the_pooler_answers_has_an_unknown_outcome(
        self, locks, pooler: PgBouncer, bank: Bank, account, resource
    ) -> None:
        address = plain_url(pooler.address(bank.url))
        with (
            PsycopgGuard(locks, bank.plain_url) as guard,
            psycopg.connect(address, prepare_threshold=None) as connection,
            guard.acquire(resource) as lease,
        ):
            postgres.enter(connection, lease)
            connection.execute("UPDATE accounts SET balance = 0 WHERE id = %s", [account])
            (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
            bank.kill_session(connection, pid)
            with pytest.raises(CommitOutcomeUnknownError), postgres.errors_translated(connection):
                connection.commit()
        assert bank.balance(account) == 100

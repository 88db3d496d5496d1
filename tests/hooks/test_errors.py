"""Which errors become ours, and which stay what they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from fencing import (
    AsyncGuard,
    CommitOutcomeUnknownError,
    Guard,
    LeaseExpiredError,
    LeaseLostError,
    StaleFenceError,
    UnfencedWriteError,
)
from fencing.embedded.proxy import TcpProxy
from fencing.hooks.driver import driver_of
from tests.support.bank import Account, Bank
from tests.support.scripted import ScriptedLocks, expire

if TYPE_CHECKING:
    from tests.support.banking import MakeEngine

PID = text("SELECT pg_backend_pid()")


class TestTheUsersOwn:
    def test_an_integrity_error_stays_one(
        self, guard: Guard, engine: Engine, account: int, resource: str
    ) -> None:
        with guard.acquire(resource) as lease, Session(engine) as session:
            with pytest.raises(IntegrityError):
                session.execute(text(f"INSERT INTO accounts VALUES ({account}, 1)"))
            session.rollback()
            assert session.get_one(Account, account).balance == 100
            assert not lease.lost

    def test_a_check_that_fails_at_the_flush_stays_one(
        self, guard: Guard, engine: Engine, account: int, resource: str
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            session.get_one(Account, account).balance = -5000
            with pytest.raises(IntegrityError):
                session.commit()

    def test_a_serialization_failure_of_the_users_own_rows_stays_one(
        self, make_engine: MakeEngine, locks, bank: Bank, resource: str
    ) -> None:
        engine = make_engine(isolation_level="REPEATABLE READ")
        bank.observer.execute("INSERT INTO notes (note) VALUES (%s)", (resource,))
        change = f"UPDATE notes SET note = note WHERE note = '{resource}'"
        with Guard(locks, engine).acquire(resource) as lease, Session(engine) as session:
            session.execute(text("SELECT 1"))
            bank.observer.execute(change.encode())
            with pytest.raises(OperationalError) as error:
                session.execute(text(change))
            assert error.value.orig.sqlstate == "40001"
            assert not lease.lost

    def test_so_it_is_when_the_lease_is_stale_as_well(
        self, make_engine: MakeEngine, locks, bank: Bank, resource: str
    ) -> None:
        # Not a refusal of the guard's: retrying is right, and finds out.
        engine = make_engine(isolation_level="SERIALIZABLE")
        bank.observer.execute("INSERT INTO notes (note) VALUES (%s)", (resource,))
        change = f"UPDATE notes SET note = note WHERE note = '{resource}'"
        with Guard(locks, engine).acquire(resource) as lease, Session(engine) as session:
            session.execute(text("SELECT 1"))
            bank.observer.execute(change.encode())
            with pytest.raises(OperationalError) as error:
                session.execute(text(change))
            assert error.value.orig.sqlstate == "40001"
            assert not lease.lost

    @pytest.mark.parametrize(
        ("name", "statement", "sqlstate"),
        [
            ("statement_timeout", "SELECT pg_sleep(30)", "57014"),
            ("lock_timeout", "LOCK TABLE orders", "55P03"),
        ],
    )
    def test_a_time_out_of_the_users_own_stays_one(
        self, guard, engine, bank: Bank, resource: str, name: str, statement: str, sqlstate: str
    ) -> None:
        with psycopg.connect(bank.plain_url) as other:
            other.execute("LOCK TABLE orders")
            with guard.acquire(resource) as lease, Session(engine) as session:
                session.execute(text(f"SET LOCAL {name} = '20ms'"))
                with pytest.raises(OperationalError) as error:
                    session.execute(text(statement))
                assert error.value.orig.sqlstate == sqlstate
                assert not lease.lost

    def test_a_syntax_error_stays_one(self, guard: Guard, engine: Engine, resource: str) -> None:
        with guard.acquire(resource), Session(engine) as session:
            with pytest.raises(DBAPIError) as error:
                session.execute(text("SELEKT"))
            assert error.value.orig.sqlstate == "42601"

    def test_a_missing_function_of_the_users_own_stays_one(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            with pytest.raises(DBAPIError) as error:
                session.execute(text("SELECT no_such_function()"))
            assert error.value.orig.sqlstate == "42883"

    @pytest.mark.parametrize("name", ["my_fencing_stats", "fencing_stats", "stats.fencing"])
    def test_so_it_is_when_its_name_resembles_ours(
        self, guard: Guard, engine: Engine, resource: str, name: str
    ) -> None:
        with guard.acquire(resource), Session(engine) as session, pytest.raises(DBAPIError):
            session.execute(text(f"SELECT {name}()"))

    def test_our_sqlstate_without_our_facts_breaks_nothing(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        raises = "DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = 'ZF001', DETAIL = 'no'; END $$"
        with guard.acquire(resource), Session(engine) as session:
            with pytest.raises(StaleFenceError) as error:
                session.execute(text(raises))
            assert error.value.current_token is None


class TestEndedSessions:
    @pytest.fixture(params=["statement", "commit"])
    def act(self, request: pytest.FixtureRequest):
        if request.param == "commit":
            return Session.commit
        return lambda session: session.execute(text("SELECT 1"))

    def test_one_that_is_terminated_under_a_live_lease_is_an_operational_error(
        self, guard: Guard, engine: Engine, bank: Bank, account, resource: str, act
    ) -> None:
        with guard.acquire(resource) as lease, Session(engine) as session:
            session.get_one(Account, account).balance = 0
            session.flush()
            bank.kill_session(driver_of(session.connection()))
            with pytest.raises(OperationalError):
                act(session)
            assert not lease.lost
            session.rollback()
            assert session.get_one(Account, account).balance == 100

    def test_one_whose_lease_has_expired_is_not_even_asked(
        self, guard: Guard, engine: Engine, bank: Bank, account, resource: str, act
    ) -> None:
        with guard.acquire(resource) as lease, Session(engine) as session:
            session.get_one(Account, account).balance = 0
            session.flush()
            bank.kill_session(driver_of(session.connection()))
            expire(lease)
            with pytest.raises(LeaseExpiredError):
                act(session)
            session.rollback()

    @pytest.mark.parametrize("overtaken", [False, True])
    def test_one_that_is_ended_during_a_statement_past_its_trust_is_expired_or_stale(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str, *, overtaken: bool
    ) -> None:
        with guard.acquire(resource, ttl=1.0) as lease, Session(engine) as session:
            if overtaken:
                # The successor's admission goes through as soon as the session has ended.
                from concurrent.futures import ThreadPoolExecutor

                with ThreadPoolExecutor() as pool:
                    session.execute(text("SELECT 1"))
                    successor = pool.submit(Guard(ScriptedLocks(2), engine).acquire, resource)
                    bank.wait_until_queued()
                    with pytest.raises(LeaseLostError) as error:
                        session.execute(text("SELECT pg_sleep(30)"))
                    assert successor.result(20).token == 2
                assert isinstance(error.value, StaleFenceError | LeaseExpiredError)
            else:
                with pytest.raises(LeaseExpiredError, match="the server has ended") as error:
                    session.execute(text("SELECT pg_sleep(30)"))
            assert (error.value.resource, error.value.token) == (resource, 1)
            assert isinstance(error.value.__cause__, psycopg.Error)
            assert lease.lost
            session.rollback()

    def test_an_idle_one_that_its_limit_has_ended_says_so(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource, ttl=1.0) as lease, Session(engine) as session:
            bank.wait_until_gone(session.scalar(PID))
            with pytest.raises(LeaseExpiredError):
                session.execute(text("SELECT 1"))
            session.rollback()
            assert lease.lost
            with guard.suspended():
                assert session.scalar(text("SELECT 1")) == 1

    @pytest.mark.parametrize("expired", [False, True])
    def test_a_commit_that_was_cut_short_keeps_its_unknown_outcome(
        self, make_engine: MakeEngine, locks, bank: Bank, account: int, resource, *, expired: bool
    ) -> None:
        with TcpProxy.to(bank.url) as proxy:
            engine = make_engine(proxy.url)
            with Guard(locks, engine).acquire(resource) as lease, Session(engine) as session:
                session.get_one(Account, account).balance = 1
                session.flush()
                if expired:  # after the deadline was checked, while COMMIT is on its way
                    event.listen(engine, "commit", lambda _connection: expire(lease))
                proxy.swallow_reply(containing=b"COMMIT")
                with pytest.raises(CommitOutcomeUnknownError):
                    session.commit()
                assert proxy.swallowed.wait(10)
                session.rollback()
        assert bank.balance(account) == 1, "it was committed, and nobody said that it was not"

    async def test_under_asyncio_a_terminated_one_is_the_driver_s_error(
        self, async_guard: AsyncGuard, async_engine: AsyncEngine, bank: Bank, resource: str
    ) -> None:
        async with async_guard.acquire(resource) as lease, AsyncSession(async_engine) as session:
            bank.kill_backend(await session.scalar(PID))
            with pytest.raises(DBAPIError) as error:
                await session.execute(text("SELECT 1"))
            assert error.value.connection_invalidated
            assert not lease.lost

    async def test_under_asyncio_one_that_its_limit_has_ended_is_expired(
        self, async_guard: AsyncGuard, async_engine: AsyncEngine, resource: str
    ) -> None:
        async with (
            async_guard.acquire(resource, ttl=1.0) as lease,
            AsyncSession(async_engine) as session,
        ):
            with pytest.raises(LeaseExpiredError):
                await session.execute(text("SELECT pg_sleep(30)"))
            assert lease.lost


class TestDeferredWrites:
    @pytest.mark.usefixtures("guard")
    def test_a_write_at_commit_is_refused_at_commit(
        self, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        with Session(engine) as session:
            session.execute(text(f"INSERT INTO orders (account_id) VALUES ({account})"))
            with pytest.raises(UnfencedWriteError) as refusal:
                session.commit()
            assert (refusal.value.table, refusal.value.resource) == ("public.accounts", resource)
            session.rollback()
            assert session.scalar(text("SELECT 1")) == 1
        assert bank.balance(account) == 100

    def test_under_the_lease_it_is_committed(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        with guard.acquire(resource), engine.begin() as connection:
            connection.execute(text(f"INSERT INTO orders (account_id) VALUES ({account})"))
        assert bank.balance(account) == 99

    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_an_overtaken_one_is_stale_at_commit(
        self, make_engine: MakeEngine, locks, bank: Bank, account, resource, level: str
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        from fencing import fence

        engine = make_engine(isolation_level=level)
        lease = Guard(locks, engine).acquire(resource)
        with Session(engine) as session, ThreadPoolExecutor() as pool:

            def begin() -> None:
                with fence(session, lease):
                    session.execute(text("SELECT 1"))

            with bank.admitting(resource, 2):
                entering = pool.submit(begin)
                bank.wait_until_queued()
            entering.result(20)
            session.execute(text(f"INSERT INTO orders (account_id) VALUES ({account})"))
            with pytest.raises(StaleFenceError) as refusal:
                session.commit()
            assert refusal.value.current_token == 2
            session.rollback()
        assert bank.balance(account) == 100

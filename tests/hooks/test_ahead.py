"""Entry goes ahead: its answer is looked at by whatever comes first, and by nothing before."""

from __future__ import annotations

import contextlib
import gc
import inspect
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import ClientCursor, ServerCursor
from sqlalchemy import Engine, event, text
from sqlalchemy.exc import OperationalError, PendingRollbackError
from sqlalchemy.orm import Session

from fencing import (
    FencingUsageError,
    Guard,
    LeaseLostError,
    StaleFenceError,
    UnfencedWriteError,
    fence,
)
from fencing.core import message
from fencing.embedded.proxy import TcpProxy
from fencing.hooks import ahead, entry
from fencing.hooks import engine as hooks_of_engines
from fencing.hooks.database import Database
from tests.support.bank import Bank, presented
from tests.support.interrupting import interrupted_before_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection

    from tests.support.banking import MakeEngine

PID = text("SELECT pg_backend_pid()")


def driver_of(connection: Connection) -> Any:
    return connection.connection.driver_connection


def awaits_nothing(driver: Any) -> bool:
    """Whether the driver's connection is as psycopg has made it."""
    return (
        "wait" not in vars(driver)
        and driver.cursor_factory is psycopg.Cursor
        and driver.server_cursor_factory is psycopg.ServerCursor
    )


def test_a_begin_waits_for_nothing(guard: Guard, engine: Engine, bank: Bank, resource: str) -> None:
    with guard.acquire(resource), engine.connect() as connection:
        with bank.admitting(resource, 2):
            connection.begin()
            bank.wait_until_queued()  # the entry, behind the admission
        with pytest.raises(StaleFenceError) as refusal:
            connection.execute(text("SELECT 1"))
        assert refusal.value.current_token == 2
        assert awaits_nothing(driver_of(connection))


def copy(driver: psycopg.Connection) -> object:
    with driver.cursor().copy("COPY (SELECT 7) TO STDOUT") as rows:
        return int(b"".join(rows))


def fetch_from_the_server(driver: psycopg.Connection) -> object:
    with driver.cursor("some") as cursor:
        return cursor.execute("SELECT 7").fetchone()[0]


def execute_many(driver: psycopg.Connection) -> object:
    with driver.cursor() as cursor:
        cursor.executemany("SELECT %s::int", [(7,)], returning=True)
        return cursor.fetchone()[0]


def in_a_pipeline(driver: psycopg.Connection) -> object:
    with driver.pipeline():
        return driver.execute("SELECT 7").fetchone()[0]


def in_a_savepoint(driver: psycopg.Connection) -> object:
    with driver.transaction():
        return driver.execute("SELECT 7").fetchone()[0]


def listen(driver: psycopg.Connection) -> object:
    return 7 + len(list(driver.notifies(timeout=0)))


FIRST: dict[str, Callable[[Any], object]] = {
    "execute": lambda driver: driver.execute("SELECT 7").fetchone()[0],
    "a cursor": lambda driver: driver.cursor().execute("SELECT 7").fetchone()[0],
    "a stream": lambda driver: next(iter(driver.cursor().stream("SELECT 7")))[0],
    "a cursor on the server": fetch_from_the_server,
    "COPY": copy,
    "executemany": execute_many,
    "a pipeline": in_a_pipeline,
    "a savepoint": in_a_savepoint,
    "notifications": listen,
}


class TestOnTheDriversOwnConnection:
    @pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
    def test_whatever_comes_first_comes_after_the_entry(
        self, guard: Guard, engine: Engine, resource: str, first
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            connection.begin()
            driver = driver_of(connection)
            assert not awaits_nothing(driver)
            assert first(driver) == 7
            assert awaits_nothing(driver)
            assert presented(connection) == {resource: 1}

    @pytest.mark.parametrize("first", [f for f in FIRST if f != "notifications"])
    def test_and_is_refused_as_the_entry_is(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str, first
    ) -> None:
        if first == "a savepoint" and "_exit_gen" not in inspect.getsource(
            psycopg.Transaction.__enter__
        ):
            pytest.skip("this psycopg counts a savepoint that could not be begun")
        with guard.acquire(resource) as lease, engine.connect() as connection:
            bank.admit(resource, 2)
            connection.begin()
            driver = driver_of(connection)
            with pytest.raises(StaleFenceError):
                FIRST[first](driver)
            assert lease.lost
            assert awaits_nothing(driver)
            connection.rollback()
            with guard.suspended():
                assert FIRST[first](driver) == 7

    def test_a_commit_of_his_own_is_refused_as_well(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            bank.admit(resource, 2)
            connection.begin()
            with pytest.raises(StaleFenceError):
                driver_of(connection).commit()

    def test_a_rollback_of_his_own_is_one(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            bank.admit(resource, 2)
            connection.begin()
            driver = driver_of(connection)
            driver.rollback()
            assert awaits_nothing(driver)
            assert driver.execute("SELECT 7").fetchone() == (7,)

    def test_a_refusal_that_he_swallows_is_raised_by_the_commit(
        self, guard: Guard, engine: Engine, locks, resource: str
    ) -> None:
        assert guard  # it listens
        never_admitted = locks.acquire(resource)
        with engine.connect() as connection, fence(connection, never_admitted):
            connection.begin()
            with pytest.raises(UnfencedWriteError) as refusal:
                driver_of(connection).execute("SELECT 1")
            assert isinstance(refusal.value.__cause__, psycopg.Error)
            with pytest.raises(UnfencedWriteError):
                connection.commit()

    def test_nothing_is_held_while_his_error_is_made(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        @event.listens_for(engine, "handle_error")
        def _look(context: Any) -> None:
            assert not driver_of(context.connection).lock.locked()

        with guard.acquire(resource), engine.connect() as connection:
            bank.admit(resource, 2)
            connection.begin()
            with pytest.raises(StaleFenceError):
                driver_of(connection).execute("SELECT 1")
            with pytest.raises(LeaseLostError):
                connection.execute(text("SELECT 1"))

    def test_several_threads_wait_for_it_together(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource) as lease, engine.connect() as connection:
            with ThreadPoolExecutor() as pool, bank.admitting(resource, 1, lease.holder):
                connection.begin()
                bank.wait_until_queued()
                driver = driver_of(connection)
                each = ("execute", "a cursor", "a stream")
                work = [pool.submit(FIRST[name], driver) for name in each]
            assert [each.result() for each in work] == [7] * len(work)
            assert presented(connection) == {resource: 1}

    def test_classes_of_cursors_that_he_sets_meanwhile_stay(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            connection.begin()
            driver = driver_of(connection)
            driver.cursor_factory = ClientCursor
            assert driver.execute("SELECT 7").fetchone() == (7,)
            assert driver.cursor_factory is ClientCursor
            driver.cursor_factory = psycopg.Cursor


def test_a_cursor_of_before_comes_after_it_too(guard: Guard, engine: Engine, resource: str) -> None:
    with guard.acquire(resource), engine.connect() as connection:
        cursor = driver_of(connection).cursor()
        connection.begin()
        assert cursor.execute("SELECT 7").fetchone() == (7,)
        assert presented(connection) == {resource: 1}


def test_cursors_look_as_ever_and_work_afterwards(
    make_engine: MakeEngine, locks, resource: str
) -> None:
    engine = make_engine()

    @event.listens_for(engine, "connect")
    def _choose(dbapi: Any, _record: object) -> None:
        dbapi.cursor_factory = ClientCursor

    with Guard(locks, engine).acquire(resource), engine.connect() as connection:
        connection.begin()
        driver = driver_of(connection)
        plain, named = driver.cursor(), driver.cursor("some")
        assert isinstance(plain, ClientCursor)
        assert repr(type(plain)) == repr(ClientCursor)
        assert repr(type(named)) == repr(ServerCursor)
        with named:
            assert named.execute("SELECT 7").fetchone() == (7,)
        assert list(plain.stream("SELECT 7")) == [(7,)]
        assert driver.cursor_factory is ClientCursor


class TestWhereItCannotGoAhead:
    @pytest.fixture(
        params=["a wait of somebody's", "cursors of somebody's", "a function that makes cursors"]
    )
    def engine(self, request: pytest.FixtureRequest, make_engine: MakeEngine) -> Engine:
        engine = make_engine()

        @event.listens_for(engine, "connect")
        def _change(dbapi: Any, _record: object) -> None:
            if request.param == "a wait of somebody's":
                dbapi.wait = dbapi.wait
            elif request.param == "cursors of somebody's":
                dbapi.cursor_factory = type("Theirs", (psycopg.Cursor,), {})
            else:
                dbapi.cursor_factory = partial(psycopg.Cursor)

        return engine

    def test_a_begin_waits_for_its_answer(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            with connection.begin():
                assert presented(connection) == {resource: 1}
            bank.admit(resource, 2)
            with pytest.raises(StaleFenceError):
                connection.begin()


class TestWithAListenerAfterOurs:
    """A refused entry is raised out of our own listener, or SQLAlchemy begins nothing any more."""

    @pytest.fixture
    def seen(self, engine: Engine, guard: Guard) -> list[int]:
        assert guard  # it has listened before
        seen: list[int] = []
        event.listen(engine, "begin", lambda connection: seen.append(connection.scalar(PID)))
        return seen

    def test_what_is_written_after_a_refusal_is_committed(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str, seen: list[int]
    ) -> None:
        with engine.connect() as connection:
            with guard.acquire(resource):
                bank.admit(resource, 2)
                with pytest.raises(StaleFenceError):
                    connection.execute(text("SELECT 1"))
            connection.rollback()
            assert not seen
            connection.execute(text("INSERT INTO notes (note) VALUES (:n)"), {"n": resource})
            connection.commit()
            assert seen
        assert bank.notes(resource) == 1

    def test_it_runs_under_the_lease(
        self, guard: Guard, engine: Engine, resource: str, seen: list[int]
    ) -> None:
        with guard.acquire(resource), engine.begin() as connection:
            assert seen
            assert presented(connection) == {resource: 1}


class TestWithoutAStatement:
    def test_a_commit_is_good(self, guard: Guard, engine: Engine, resource: str) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            for _ in range(2):
                with connection.begin():
                    pass
            assert awaits_nothing(driver_of(connection))
            assert presented(connection) == {resource: 1}

    def test_a_commit_is_refused_as_the_entry_is(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            bank.admit(resource, 2)
            connection.begin()
            with pytest.raises(StaleFenceError):
                connection.commit()
            connection.rollback()
            with guard.suspended():
                assert presented(connection) == {}

    def test_a_rollback_is_one_also_of_a_refused_entry(
        self, make_engine: MakeEngine, locks, bank: Bank, resource: str
    ) -> None:
        engine = make_engine(pool_size=1, max_overflow=0)
        guard = Guard(locks, engine)
        with engine.connect() as connection:
            pid = connection.scalar(PID)
        with guard.acquire(resource), engine.connect() as connection:
            bank.admit(resource, 2)
            connection.begin()
            connection.rollback()
            assert awaits_nothing(driver_of(connection))
        with engine.connect() as connection:
            assert connection.scalar(PID) == pid

    def test_one_that_is_dropped_leaves_its_connection_as_it_was(
        self, make_engine: MakeEngine, locks, resource: str
    ) -> None:
        engine = make_engine(pool_size=1, max_overflow=0)
        guard = Guard(locks, engine)
        with engine.connect() as connection:
            pid = connection.scalar(PID)
        with guard.acquire(resource):
            dropped = engine.connect()
            dropped.begin()
            del dropped
            gc.collect()
        with engine.connect() as connection:
            assert connection.scalar(PID) == pid
            assert presented(connection) == {}
            assert awaits_nothing(driver_of(connection))

    def test_a_commit_of_one_that_was_given_up_is_none(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            connection.begin()
            connection.invalidate()
            with pytest.raises(PendingRollbackError):
                connection.commit()
            connection.rollback()
            assert presented(connection) == {resource: 1}


def test_an_entry_that_is_sent_again_ends_when_the_first_would_have(
    guard: Guard, engine: Engine, bank: Bank, resource: str
) -> None:
    limit = text(
        "SELECT min(CAST(setting AS int)) FROM pg_settings "
        "WHERE name IN ('transaction_timeout', 'statement_timeout') AND setting <> '0'"
    )
    with guard.acquire(resource, ttl=60) as lease, engine.connect() as connection:
        with connection.begin():
            presented(connection)
        with guard.suspended():
            connection.execute(text("DISCARD PLANS"))
            connection.execute(text("DEALLOCATE ALL"))
            connection.commit()
        with bank.admitting(resource, 1, lease.holder):
            connection.begin()
            before = lease.remaining
        bank.wait_until("SELECT pg_sleep(0.3) IS NOT NULL")
        assert connection.scalar(limit) <= (before - 0.25) * 1000


class TestALostConnection:
    """One that is lost before the entry is answered: nothing of the transaction was done."""

    @pytest.fixture
    def proxy(self, bank: Bank) -> Iterator[TcpProxy]:
        with TcpProxy.to(bank.url) as proxy:
            yield proxy

    @pytest.fixture
    def engine(self, make_engine: MakeEngine, proxy: TcpProxy) -> Engine:
        return make_engine(proxy.url)

    @pytest.fixture
    def connection(
        self, guard: Guard, engine: Engine, proxy: TcpProxy, resource: str
    ) -> Iterator[Connection]:
        with guard.acquire(resource), engine.connect() as connection:
            proxy.withhold_request(b"fencing.enter")
            connection.begin()
            yield connection

    def test_is_told_by_what_comes_first(self, connection: Connection, guard: Guard) -> None:
        with pytest.raises(OperationalError):
            connection.execute(text("SELECT 1"))
        assert connection.invalidated
        connection.rollback()
        with guard.suspended():
            assert presented(connection) == {}

    def test_leaves_no_doubt_at_commit(self, connection: Connection) -> None:
        with pytest.raises(OperationalError):
            connection.commit()
        assert connection.invalidated

    def test_is_told_by_the_drivers_own(self, connection: Connection) -> None:
        driver = driver_of(connection)
        with pytest.raises(psycopg.OperationalError):
            driver.execute("SELECT 1")
        assert driver.closed
        connection.invalidate()

    def test_does_not_matter_to_a_rollback(self, connection: Connection, guard: Guard) -> None:
        driver_of(connection).close()
        with contextlib.suppress(OperationalError):  # as of any connection that is lost
            connection.rollback()
        with guard.suspended():
            assert presented(connection) == {}


def test_the_fence_of_the_session_goes_ahead_as_well(
    guard: Guard, engine: Engine, bank: Bank, resource: str
) -> None:
    lease = guard.acquire(resource)
    with Session(engine) as session, fence(session, lease):
        session.connection()
        assert not awaits_nothing(driver_of(session.connection()))
        with session.begin_nested():
            assert presented(session) == {resource: lease.token}


def use(connection: Connection, resource: str) -> None:
    connection.begin()
    assert presented(connection) == {resource: 1}
    connection.commit()


def commit(connection: Connection, resource: str) -> None:
    connection.begin()
    connection.commit()


def use_the_drivers(connection: Connection, resource: str) -> None:
    connection.begin()
    driver_of(connection).execute("SELECT 1")
    connection.commit()


class TestInterrupts:
    @pytest.mark.parametrize("work", [use, commit, use_the_drivers])
    def test_the_next_user_of_the_connection_finds_nothing_of_it(
        self, make_engine: MakeEngine, locks, resource: str, work
    ) -> None:
        engine = make_engine(pool_size=1, max_overflow=0)
        guard = Guard(locks, engine)
        with guard.acquire(resource, ttl=600):
            for number in range(1, 1000):
                with interrupted_before_line(number, ahead, entry, message) as lines:
                    try:
                        with engine.connect() as connection:
                            work(connection, resource)
                    except KeyboardInterrupt:
                        pass
                    else:
                        break
                where = f"interrupted before {lines[-1]!r}"
                with guard.suspended(), engine.begin() as connection:
                    assert not presented(connection), where
                with engine.begin() as connection:
                    assert presented(connection) == {resource: 1}, where
                    assert awaits_nothing(driver_of(connection)), where
        assert number > 60

    def test_whoever_goes_on_after_one_is_under_the_lease_or_refused(
        self, make_engine: MakeEngine, locks, resource: str
    ) -> None:
        engine = make_engine(pool_size=1, max_overflow=0)
        guard = Guard(locks, engine)
        outcomes = set()
        with guard.acquire(resource, ttl=600):
            for number in range(1, 1000):
                with engine.connect() as connection:
                    connection.begin()
                    with interrupted_before_line(number, ahead, message) as lines:
                        try:
                            driver_of(connection).execute("SELECT 1")
                        except KeyboardInterrupt:
                            pass
                        else:
                            break
                    where = f"interrupted before {lines[-1]!r}"
                    try:
                        assert presented(connection) == {resource: 1}, where
                    except (FencingUsageError, OperationalError) as error:
                        outcomes.add(type(error).__name__)
                        connection.rollback()
                    else:
                        outcomes.add("under the lease")
                        assert stamp_of(connection), where
                        connection.commit()
        assert outcomes == {"FencingUsageError", "OperationalError", "under the lease"}

    def test_what_is_committed_after_one_is_committed(
        self, guard: Guard, engine: Engine, bank: Bank, resource: str
    ) -> None:
        with guard.acquire(resource, ttl=600):
            for number in range(1, 1000):
                with engine.connect() as connection:
                    with interrupted_before_line(number, hooks_of_engines, ahead) as lines:
                        try:
                            connection.execute(text("SELECT 1"))
                        except KeyboardInterrupt:
                            pass
                        else:
                            break
                    connection.rollback()
                    note = {"note": f"{resource} {number}"}
                    connection.execute(text("INSERT INTO notes (note) VALUES (:note)"), note)
                    connection.commit()
                    assert bank.notes(note["note"]) == 1, f"interrupted before {lines[-1]!r}"
        assert number > 40


def stamp_of(connection: Connection) -> str:
    return Database.known(connection.engine).presentations.get(connection).stamp

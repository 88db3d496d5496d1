"""Entry in one message with BEGIN: what it is prepared for, and what it leaves behind."""

from __future__ import annotations

import psycopg
import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from fencing import Guard, StaleFenceError
from fencing.core import message
from fencing.hooks import entry
from tests.support.bank import Account, Bank, presented
from tests.support.databases import plain_url
from tests.support.interrupting import interrupted_before_line
from tests.support.scripted import ScriptedLocks

PREPARED = text("SELECT count(*) FROM pg_prepared_statements WHERE name = 'fencing_enter'")


def rounds(engine, resource, number=3) -> list[int]:
    """Transactions on one connection, each presenting its lease; how often entry is prepared."""
    counts = []
    for _ in range(number):
        with Session(engine) as session:
            assert presented(session) == {resource: 1}
            counts.append(session.scalar(PREPARED))
            session.commit()
    return counts


def test_it_is_prepared_once_a_connection(guard: Guard, engine, resource) -> None:
    with guard.acquire(resource):
        assert rounds(engine, resource) == [1, 1, 1]


def test_not_where_the_driver_is_told_to_prepare_nothing(make_engine, locks, resource) -> None:
    engine = make_engine(connect_args={"prepare_threshold": None})
    with Guard(locks, engine).acquire(resource):
        assert rounds(engine, resource) == [0, 0, 0]


@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("DEALLOCATE ALL", 0),
        ("DISCARD ALL", 0),
        ("DEALLOCATE fencing_enter", 0),
        ("DEALLOCATE fencing_begin", 1),
    ],
)
def test_somebody_who_deallocates_it_is_not_noticed(
    guard: Guard, engine, resource, statement, left
) -> None:
    with guard.acquire(resource):
        assert rounds(engine, resource) == [1, 1, 1]
        with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(text(statement))
        assert rounds(engine, resource) == [left] * 3


@pytest.mark.parametrize(("name", "theirs"), [("fencing_enter", 1), ("fencing_begin", 0)])
def test_a_statement_of_that_name_from_somebody_else_is_no_obstacle(
    guard: Guard, engine, resource, name, theirs
) -> None:
    with engine.connect() as connection:
        connection.execute(text(f"PREPARE {name} AS SELECT 1"))
        connection.commit()
    with guard.acquire(resource):
        assert rounds(engine, resource) == [theirs] * 3


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_the_transaction_has_the_isolation_level_of_its_engine(
    make_engine, locks, resource, level
) -> None:
    engine = make_engine(isolation_level=level)
    with Guard(locks, engine).acquire(resource), Session(engine) as session:
        assert presented(session) == {resource: 1}
        assert session.scalar(text("SHOW transaction_isolation")) == level.lower()


def test_what_is_prepared_serves_transactions_of_every_kind(guard: Guard, engine, resource) -> None:
    serializable = engine.execution_options(isolation_level="SERIALIZABLE")
    with guard.acquire(resource):
        assert rounds(serializable, resource) == [1, 1, 1]
        assert rounds(engine, resource) == [1, 1, 1]
        assert rounds(serializable, resource) == [1, 1, 1]


def test_deferrable_is_kept(make_engine, locks, resource) -> None:
    engine = make_engine(isolation_level="SERIALIZABLE")

    @event.listens_for(engine, "connect")
    def _defer(_dbapi: object, record) -> None:
        record.driver_connection.deferrable = True

    with Guard(locks, engine).acquire(resource), Session(engine) as session:
        assert presented(session) == {resource: 1}
        assert session.scalar(text("SHOW transaction_deferrable")) == "on"


def test_a_refused_entry_leaves_the_connection_usable_and_in_its_pool(
    guard: Guard, engine, bank: Bank, resource
) -> None:
    with Session(engine) as session:
        pid = session.scalar(text("SELECT pg_backend_pid()"))
    with guard.acquire(resource, ttl=60):
        bank.admit(resource, 7)
        with Session(engine) as session:
            with pytest.raises(StaleFenceError) as caught:
                session.get(Account, 1)
            assert isinstance(caught.value.__cause__, engine.dialect.loaded_dbapi.Error)
            session.rollback()
    with Session(engine) as session:
        assert session.scalar(text("SELECT pg_backend_pid()")) == pid


def test_an_unexpected_error_at_entry_shows_no_nonce(own_bank: Bank) -> None:
    engine = create_engine(own_bank.url)
    with Guard(ScriptedLocks(), engine) as guard, guard.acquire("account:1") as lease:
        with psycopg.connect(plain_url(own_bank.url)) as owner:
            owner.execute("ALTER TABLE fencing.fence RENAME COLUMN holder TO gone")
        with Session(engine) as session, pytest.raises(DBAPIError) as caught:
            session.get(Account, 1)
    engine.dispose()
    assert lease.holder not in str(caught.value)


def test_nobody_sees_the_nonce_in_a_list_of_statements(
    guard: Guard, engine, bank: Bank, resource
) -> None:
    with guard.acquire(resource) as lease, engine.connect() as connection:
        connection.begin()
        pid = connection.connection.driver_connection.info.backend_pid
        bank.wait_until(
            "SELECT query LIKE %s FROM pg_stat_activity WHERE pid = %s", "%fencing.enter%", pid
        )
        query = bank.value("SELECT query FROM pg_stat_activity WHERE pid = %s", pid)
        assert lease.holder not in query


def test_wherever_it_is_interrupted_the_next_user_of_the_connection_finds_nothing_of_it(
    make_engine, locks, resource
) -> None:
    engine = make_engine(pool_size=1, max_overflow=0)
    guard = Guard(locks, engine)
    with guard.acquire(resource, ttl=600):
        for number in range(1, 1000):
            with interrupted_before_line(number, entry, message) as lines:
                try:
                    with engine.connect() as connection:
                        connection.begin()
                except KeyboardInterrupt:
                    pass
                else:
                    break
            where = f"interrupted before {lines[-1]!r}"
            with guard.suspended(), engine.begin() as connection:
                assert not presented(connection), where
            with engine.begin() as connection:
                assert presented(connection) == {resource: 1}, where
    assert number > 30

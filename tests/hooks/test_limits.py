"""Limits of a transaction under a lease: never longer than the user's, and gone with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from fencing import Guard, LeaseExpiredError, LeaseLostError, UnfencedWriteError
from tests.support.bank import Bank, presented

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.banking import MakeEngine

LIMITS = ("statement_timeout", "idle_in_transaction_session_timeout", "transaction_timeout")
SHOW = text(
    "SELECT name, CAST(setting AS bigint) FROM pg_settings WHERE name = ANY(:names)"
)  # in ms


def limits(executor, *names: str) -> dict[str, int]:
    """What ends a transaction: from PostgreSQL 17 on, one limit that says it all."""
    found = dict(executor.execute(SHOW, {"names": list(names or LIMITS)}).all())
    if not names and "transaction_timeout" in found:
        return {"transaction_timeout": found["transaction_timeout"]}
    return found


@pytest.fixture
def with_limits(make_engine: MakeEngine, bank: Bank) -> Callable[..., Engine]:
    """Makes an engine whose sessions have these limits, as far as the server knows them."""
    query = "SELECT array_agg(name) FROM pg_settings WHERE name = ANY(%s)"

    def make(value: str, *names: str) -> Engine:
        known = bank.value(query, list(names or LIMITS))
        options = " ".join(f"-c {name}={value}" for name in known)
        return make_engine(connect_args={"options": options})

    return make


def test_every_limit_ends_with_the_trust(guard: Guard, engine: Engine, resource: str) -> None:
    with guard.acquire(resource, ttl=30), engine.connect() as connection:
        found = limits(connection)
        assert found.keys() <= set(LIMITS)
        assert len(found) == (1 if "transaction_timeout" in found else 2)
        assert all(0 < value <= 30_000 for value in found.values()), found


def test_no_limit_is_set_that_another_one_makes_needless(
    guard: Guard, engine: Engine, resource: str
) -> None:
    with guard.acquire(resource, ttl=30), engine.connect() as connection:
        if "transaction_timeout" not in limits(connection):
            pytest.skip("came with PostgreSQL 17")
        needless = limits(connection, "statement_timeout", "idle_in_transaction_session_timeout")
        assert set(needless.values()) == {0}


def test_the_shortest_lease_counts(guard: Guard, engine: Engine, resource: str) -> None:
    with (
        guard.acquire(resource, ttl=60),
        guard.acquire(f"{resource}:short", ttl=20),
        engine.connect() as connection,
    ):
        assert all(0 < value <= 20_000 for value in limits(connection).values())


def test_shorter_limits_of_the_user_stay(with_limits, locks, resource: str) -> None:
    engine = with_limits("5s")
    with Guard(locks, engine).acquire(resource, ttl=30), engine.connect() as connection:
        assert set(limits(connection).values()) == {5_000}


def test_longer_limits_of_the_user_are_shortened_and_come_back(
    with_limits, locks, resource: str
) -> None:
    engine = with_limits("1h")
    with engine.connect() as connection:
        with Guard(locks, engine).acquire(resource, ttl=30):
            assert all(0 < value <= 30_000 for value in limits(connection).values())
            connection.commit()
        assert set(limits(connection).values()) == {3_600_000}


@pytest.mark.parametrize("value", ["0", "7s", "1h"])
def test_the_users_lock_timeout_is_what_it_was_after_the_entry(
    with_limits, locks, resource: str, value: str
) -> None:
    engine = with_limits(value, "lock_timeout")
    with engine.connect() as connection:
        before = limits(connection, "lock_timeout")
        connection.rollback()
        with Guard(locks, engine).acquire(resource, ttl=30):
            assert limits(connection, "lock_timeout") == before


def test_the_server_looks_whether_its_client_is_still_there(
    guard: Guard, engine: Engine, resource: str
) -> None:
    with guard.acquire(resource, ttl=30), engine.connect() as connection:
        interval = limits(connection, "client_connection_check_interval")
        assert 0 < interval["client_connection_check_interval"] <= 500


def test_also_where_nothing_else_ends_the_transaction(
    guard: Guard, engine: Engine, resource: str
) -> None:
    with guard.acquire(resource, keepalive=True), engine.connect() as connection:
        interval = limits(connection, "client_connection_check_interval")
        assert interval["client_connection_check_interval"] == 500


@pytest.mark.parametrize(("value", "expected"), [("20ms", 20), ("10s", 500)])
def test_what_the_user_has_set_is_not_made_longer(
    with_limits, locks, resource: str, value: str, expected: int
) -> None:
    name = "client_connection_check_interval"
    engine = with_limits(value, name)
    with Guard(locks, engine).acquire(resource, keepalive=True), engine.connect() as connection:
        assert limits(connection, name) == {name: expected}


def test_so_does_its_kernel_over_tcp(
    guard: Guard, engine: Engine, bank: Bank, resource: str
) -> None:
    if bank.value("SELECT inet_server_addr() IS NULL OR version() !~ 'linux'"):
        pytest.skip("needs TCP, and Linux")
    with guard.acquire(resource, ttl=30), engine.connect() as connection:
        found = connection.scalar(text("SELECT current_setting('tcp_user_timeout')"))
        assert 0 < int(found) <= 30_000  # in ms, without a unit
        connection.rollback()
    with guard.acquire(f"{resource}:short", ttl=0.9), engine.connect() as connection:
        # A slow answer is not a dead client.
        assert connection.scalar(text("SELECT current_setting('tcp_user_timeout')")) == "1000"
    with guard.suspended(), engine.connect() as connection:
        assert connection.scalar(text("SELECT current_setting('tcp_user_timeout')")) == "0"


def test_a_shorter_one_of_the_user_stays(
    make_engine: MakeEngine, locks, bank: Bank, resource: str
) -> None:
    if bank.value("SELECT inet_server_addr() IS NULL OR version() !~ 'linux'"):
        pytest.skip("needs TCP, and Linux")
    engine = make_engine(connect_args={"options": "-c tcp_user_timeout=700"})
    with Guard(locks, engine).acquire(resource, ttl=30), engine.connect() as connection:
        assert connection.scalar(text("SELECT current_setting('tcp_user_timeout')")) == "700"


@pytest.mark.parametrize("end", ["commit", "rollback", "close", "invalidate"])
class TestThePooledConnection:
    """Whatever ends the transaction, its connection's next user finds nothing of it."""

    @pytest.fixture
    def engine(self, make_engine: MakeEngine) -> Engine:
        return make_engine(pool_size=1, max_overflow=0, pool_timeout=1)

    def test_the_next_user_is_unfenced_and_unlimited(
        self, guard: Guard, engine: Engine, account: int, resource: str, end: str
    ) -> None:
        with guard.acquire(resource):
            connection = engine.connect()
            assert presented(connection) == {resource: 1}
            pid = connection.scalar(text("SELECT pg_backend_pid()"))
            getattr(connection, end)()
            connection.close()
        with engine.connect() as connection:
            same = connection.scalar(text("SELECT pg_backend_pid()")) == pid
            assert same == (end != "invalidate")
            assert presented(connection) == {}
            assert set(limits(connection).values()) == {0}
            with pytest.raises(UnfencedWriteError):
                connection.execute(text(f"UPDATE accounts SET balance = 0 WHERE id = {account}"))

    def test_nothing_is_kept_in_its_info(
        self, guard: Guard, engine: Engine, resource: str, end: str
    ) -> None:
        with guard.acquire(resource), engine.connect() as connection:
            presented(connection)
            info = connection.info
            assert not [key for key in info if "fencing" in str(key)]
            getattr(connection, end)()


def test_an_entry_waits_for_an_admission_no_longer_than_its_trust(
    guard: Guard, engine: Engine, bank: Bank, resource: str
) -> None:
    with guard.acquire(resource, ttl=0.3), Session(engine) as session:
        with bank.admitting(resource, 2), pytest.raises(LeaseExpiredError):
            session.execute(text("SELECT 1"))
        session.rollback()


def test_an_entry_that_the_users_lock_timeout_has_ended_is_the_users(
    with_limits, locks, bank: Bank, resource: str
) -> None:
    engine = with_limits("20ms", "lock_timeout")
    with Guard(locks, engine).acquire(resource, ttl=30) as lease, engine.connect() as connection:
        with bank.admitting(resource, 2), pytest.raises(Exception, match="lock timeout") as error:
            connection.execute(text("SELECT 1"))
        assert not isinstance(error.value, LeaseLostError)
        assert not lease.lost


@pytest.mark.parametrize("rows", [1, 2])
def test_an_idle_transaction_is_limited_after_one_row_and_after_many(
    guard: Guard, engine: Engine, bank: Bank, account: int, resource: str, rows: int
) -> None:
    """A driver may send many as a pipeline, whose last message stops the limit before 17."""
    with guard.acquire(resource, ttl=1.0), engine.connect() as connection:
        pid = connection.scalar(text("SELECT pg_backend_pid()"))
        connection.execute(
            text("UPDATE accounts SET balance = 0 WHERE id = :id"), [{"id": account}] * rows
        )
        bank.wait_until_gone(pid)
        with pytest.raises(LeaseExpiredError):
            connection.commit()
    assert bank.balance(account) == 100

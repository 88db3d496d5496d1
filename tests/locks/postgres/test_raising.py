"""A lease in PostgreSQL gets another token only while nobody can have been admitted in between."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencing import (
    LeaseLostError,
    LockNotAcquiredError,
    LockServiceError,
    PostgresLockService,
    StaleFenceError,
    postgres,
)
from fencing.postgres import PsycopgGuard
from tests.support.bank import BOB, Bank, enter_by_hand
from tests.support.databases import DatabaseFactory, plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator

FAR = 2**41
"""A floor too far above any mark here."""


@pytest.fixture
def other(database_factory: DatabaseFactory) -> Iterator[str]:
    """Address of another fenced database."""
    with database_factory.fenced() as url:
        yield url


def read(bank: Bank, lease: Any, account: int) -> int:
    """What is on an account, read under a lease."""
    with psycopg.connect(bank.plain_url) as connection, postgres.transaction(connection, lease):
        row = connection.execute("SELECT balance FROM accounts WHERE id = %s", [account]).fetchone()
        assert row is not None
        return int(row[0])


def overtake(bank: Bank, resource: str, token: int, account: int) -> None:
    """Another lock service's holder is admitted, writes and is done."""
    bank.admit(resource, token, BOB)
    with psycopg.connect(bank.plain_url) as connection:
        enter_by_hand(connection, resource, token, BOB)
        connection.execute("UPDATE accounts SET balance = 50 WHERE id = %s", [account])


def test_not_after_another_was_admitted_in_its_database(
    locks: PostgresLockService, bank: Bank, account: int, resource: str
) -> None:
    lease = locks.acquire(resource, ttl=60)
    assert read(bank, lease, account) == 100
    overtake(bank, resource, lease.token + 2, account)
    with pytest.raises(LeaseLostError):
        locks.raise_token(lease, floor=lease.token + 2)
    assert lease.lost
    assert bank.mark(resource) == (lease.token + 2, BOB)


def test_not_even_if_its_token_is_above_the_floor(
    locks: PostgresLockService, bank: Bank, account: int, resource: str
) -> None:
    lease = locks.acquire(resource, ttl=60)
    overtake(bank, resource, lease.token + 2, account)
    with pytest.raises(LeaseLostError):
        locks.raise_token(lease, floor=0)


def test_a_guard_of_two_databases_does_not_revive_it(
    locks: PostgresLockService, bank: Bank, account: int, resource: str, other: str
) -> None:
    """The other database is ahead, which is why a new token is asked for at all."""
    lease = locks.acquire(resource, ttl=60)
    seen = read(bank, lease, account)
    with psycopg.connect(plain_url(other), autocommit=True) as connection:
        connection.execute("SELECT fencing.admit(%s, 300, %s, 'bob', 0)", [resource, BOB])
    overtake(bank, resource, lease.token + 2, account)
    with (
        PsycopgGuard(locks, bank.plain_url, plain_url(other)) as guard,
        pytest.raises(StaleFenceError),
    ):
        guard.admit(lease)
    with (
        psycopg.connect(bank.plain_url) as connection,
        pytest.raises(LeaseLostError),
        postgres.transaction(connection, lease),
    ):
        connection.execute("UPDATE accounts SET balance = %s WHERE id = %s", [seen - 10, account])
    assert bank.balance(account) == 50


def test_but_while_it_is_the_mark_it_is_raised_and_admitted(
    locks: PostgresLockService, bank: Bank, account: int, resource: str
) -> None:
    lease = locks.acquire(resource, ttl=60)
    for floor in (lease.token + 10, lease.token + 20):
        locks.raise_token(lease, floor=floor)
        assert lease.token == floor + 1
        assert bank.mark(resource) == (lease.token, lease.holder)
        assert read(bank, lease, account) == 100


def test_not_while_a_maintenance_raises_the_fence(
    locks: PostgresLockService, bank: Bank, resource: str
) -> None:
    """Which does so without the lock of admissions."""
    lease = locks.acquire(resource, ttl=60)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            locks.raise_token(lease, floor=lease.token + 5)
        except LeaseLostError as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    with psycopg.connect(bank.plain_url) as maintenance:
        maintenance.execute(
            "UPDATE fencing.fence SET token = token + 1, holder = %s WHERE resource = %s",
            [BOB, resource],
        )
        asking.start()
        bank.wait_until(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' "
            "AND query LIKE '%%fencing.raise_token%%')"
        )
    asking.join(20)
    assert len(failures) == 1


@pytest.mark.parametrize("how", ["acquire", "raise_token"])
def test_a_token_that_is_nonsense_spoils_nothing(
    locks: PostgresLockService, bank: Bank, resource: str, how: str
) -> None:
    """Also where it could not be admitted at once, for a predecessor's transaction is open."""
    lease = locks.acquire(resource, ttl=60)
    with psycopg.connect(bank.plain_url) as open_one:
        enter_by_hand(open_one, resource, lease.token, lease.holder)
        if how == "acquire":
            lease.release()
            with pytest.raises((LockServiceError, LockNotAcquiredError)):
                locks.acquire(resource, ttl=60, floor=FAR, blocking_timeout=0.2)
        else:
            with pytest.raises(LockServiceError):
                locks.raise_token(lease, floor=FAR)
            open_one.rollback()
            with pytest.raises(LockServiceError, match="implausible"):
                locks.raise_token(lease, floor=FAR)
            lease.release()
    with locks.acquire(resource, ttl=60, blocking_timeout=10) as again:
        assert again.token < 100


def test_nor_does_one_for_a_lease_that_is_not_admitted_yet(
    locks: PostgresLockService, bank: Bank, resource: str
) -> None:
    locks.note_guarded()  # the guard admits what could not be admitted at once
    lease = locks.acquire(resource, ttl=60)
    with psycopg.connect(bank.plain_url) as open_one:
        enter_by_hand(open_one, resource, lease.token, lease.holder)
        lease.release()
        waiting = locks.acquire(resource, ttl=60)
        assert not waiting.admitted_in
        with pytest.raises(LockServiceError, match="implausible"):
            locks.raise_token(waiting, floor=FAR)
        locks.raise_token(waiting, floor=50)
        assert waiting.token == 51
        waiting.release()
    with locks.acquire(resource, ttl=60) as again:
        assert again.token < 100

"""Every way to write, in the transactions of bare psycopg."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing import StaleFenceError, UnfencedWriteError, postgres
from tests.support.scripted import ScriptedLocks
from tests.support.writes import RAW_WRITES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing import Lease
    from tests.support.bank import Bank
    from tests.support.writes import RawWrite

pytestmark = pytest.mark.parametrize("write", RAW_WRITES.values(), ids=RAW_WRITES.keys())


@pytest.fixture
def guard(bank: Bank) -> Iterator[postgres.PsycopgGuard]:
    with postgres.PsycopgGuard(ScriptedLocks(), bank.plain_url) as guard:
        yield guard


@pytest.fixture
def connection(bank: Bank) -> Iterator[psycopg.Connection]:
    with psycopg.connect(bank.plain_url) as connection:
        yield connection


@pytest.fixture
def lease(guard: postgres.PsycopgGuard, resource: str) -> Lease:
    return guard.acquire(resource)


def test_a_holder_may(connection, bank: Bank, account: int, lease: Lease, write: RawWrite) -> None:
    before = bank.state(account)
    with postgres.transaction(connection, lease):
        write(connection, account)
    assert bank.state(account) != before


def test_nobody_may_without_a_lease(connection, bank: Bank, account: int, write: RawWrite) -> None:
    before = bank.state(account)
    with (
        pytest.raises(UnfencedWriteError),
        postgres.errors_translated(connection),
        connection.transaction(),
    ):
        write(connection, account)
    assert bank.state(account) == before


def test_a_holder_of_something_else_may_not(
    connection, bank: Bank, guard, account: int, write: RawWrite
) -> None:
    before = bank.state(account)
    other = guard.acquire(f"account:{bank.new_account()}")
    with pytest.raises(UnfencedWriteError) as error, postgres.transaction(connection, other):
        write(connection, account)
    assert error.value.resource == f"account:{account}"
    assert bank.state(account) == before


def test_one_that_was_overtaken_may_not(
    connection, bank: Bank, account: int, lease: Lease, resource: str, write: RawWrite
) -> None:
    before = bank.state(account)
    bank.admit(resource, 2)
    with pytest.raises(StaleFenceError), postgres.transaction(connection, lease):
        write(connection, account)
    with pytest.raises(UnfencedWriteError), postgres.errors_translated(connection):
        write(connection, account)
    connection.rollback()
    assert bank.state(account) == before


def test_an_entry_is_good_for_one_transaction(
    connection, bank: Bank, account: int, lease: Lease, write: RawWrite
) -> None:
    before = bank.state(account)
    postgres.enter(connection, lease)
    connection.commit()
    with pytest.raises(UnfencedWriteError), postgres.errors_translated(connection):
        write(connection, account)
    connection.rollback()
    assert bank.state(account) == before

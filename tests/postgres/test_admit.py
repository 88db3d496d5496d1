"""Admission alone, on a connection of the caller's."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.rows import dict_row

from fencing import (
    FencingUsageError,
    GuardNotInstalledError,
    LeaseExpiredError,
    LockNotAcquiredError,
    LockServiceError,
    StaleFenceError,
    postgres,
)
from tests.support.bank import ALICE, Bank, enter_by_hand
from tests.support.databases import plain_url
from tests.support.scripted import expire

IDLE = psycopg.pq.TransactionStatus.IDLE


@pytest.fixture
async def lease(side, locks, resource):
    """A lease that was never admitted."""
    return await side.do(locks.acquire(resource))


@pytest.mark.parametrize("autocommit", [True, False])
async def test_it_is_committed_at_once_and_leaves_the_connection_as_it_was(
    side, connection, bank: Bank, lease, resource, autocommit
) -> None:
    await side.set_autocommit(connection, value=autocommit)
    connection.row_factory = dict_row
    connection.prepare_threshold = 0
    await side.do(postgres.admit(connection, lease))
    assert bank.mark(resource) == (1, lease.holder)
    assert lease.admitted
    assert connection.autocommit == autocommit
    assert connection.row_factory is dict_row
    assert connection.info.transaction_status == IDLE


@pytest.mark.parametrize("level", ["REPEATABLE_READ", "SERIALIZABLE"])
@pytest.mark.parametrize("where", ["connection", "session"])
async def test_another_isolation_level_by_default_does_not_matter(
    side, bank: Bank, lease, resource, level, where
) -> None:
    words = level.replace("_", " ").lower()
    options = f"-c default_transaction_isolation={words!s}".replace("e r", "e\\ r")
    connection = await side.connect(bank.plain_url, options=options if where == "session" else "")
    if where == "connection":
        await side.do(connection.set_isolation_level(psycopg.IsolationLevel[level]))
    before = connection.isolation_level
    await side.do(postgres.admit(connection, lease))
    assert bank.mark(resource) == (1, lease.holder)
    assert connection.isolation_level == before
    assert connection.info.transaction_status == IDLE


async def test_a_session_that_is_read_only_by_default_admits(
    side, bank: Bank, lease, resource
) -> None:
    connection = await side.connect(bank.plain_url, options="-c default_transaction_read_only=on")
    await side.do(postgres.admit(connection, lease))
    assert bank.mark(resource) == (1, lease.holder)


@pytest.mark.parametrize("level", ["read\\ committed", "serializable"])
async def test_one_that_is_overtaken_is_refused(side, bank: Bank, lease, resource, level) -> None:
    connection = await side.connect(
        bank.plain_url, options=f"-c default_transaction_isolation={level}"
    )
    bank.admit(resource, 5)
    with pytest.raises(StaleFenceError) as error:
        await side.do(postgres.admit(connection, lease))
    assert (error.value.token, error.value.current_token) == (1, 5)
    assert isinstance(error.value.__cause__, psycopg.Error)
    assert not lease.admitted
    assert not connection.autocommit
    assert connection.info.transaction_status == IDLE


async def test_an_open_transaction_of_an_earlier_holder_is_named(
    side, connection, bank: Bank, locks, resource
) -> None:
    bank.admit(resource, 1, ALICE)
    with psycopg.connect(bank.plain_url) as earlier:
        enter_by_hand(earlier, resource, 1, ALICE)
        locks.counter = 1
        lease = await side.do(locks.acquire(resource))
        with pytest.raises(LockNotAcquiredError) as error:
            await side.do(postgres.admit(connection, lease, wait=0))
        assert error.value.blocked_by == (earlier.info.backend_pid,)
    await side.do(postgres.admit(connection, lease))
    assert bank.mark(resource) == (2, lease.holder)


async def test_a_time_out_of_its_role_is_not_taken_for_something_else(
    side, bank: Bank, locks, resource
) -> None:
    connection = await side.connect(bank.plain_url, options="-c statement_timeout=50")
    bank.admit(resource, 1, ALICE)
    with psycopg.connect(bank.plain_url) as earlier:
        enter_by_hand(earlier, resource, 1, ALICE)
        locks.counter = 1
        lease = await side.do(locks.acquire(resource))
        with pytest.raises(LockNotAcquiredError, match="time-out"):
            await side.do(postgres.admit(connection, lease))


async def test_it_would_roll_back_with_another_transaction(side, connection, lease) -> None:
    await side.execute(connection, "SELECT 1")
    with pytest.raises(FencingUsageError, match="would roll back"):
        await side.do(postgres.admit(connection, lease))


async def test_a_lease_that_is_over_is_not_sent(
    side, connection, bank: Bank, lease, resource
) -> None:
    expire(lease)
    with pytest.raises(LeaseExpiredError):
        await side.do(postgres.admit(connection, lease))
    assert bank.mark(resource) is None


async def test_an_implausible_token_is_nonsense_of_the_lock_service(
    side, connection, bank: Bank, locks, resource
) -> None:
    bank.admit(resource, 1)
    locks.counter = 2**50
    lease = await side.do(locks.acquire(resource))
    with pytest.raises(LockServiceError, match="nonsense"):
        await side.do(postgres.admit(connection, lease))


async def test_a_database_without_the_schema_says_so(side, database: str, lease) -> None:
    connection = await side.connect(plain_url(database))
    with pytest.raises(GuardNotInstalledError):
        await side.do(postgres.admit(connection, lease))


async def test_other_errors_are_psycopg_s_own(side, connection, bank: Bank, lease) -> None:
    bank.kill_backend(connection.info.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        await side.do(postgres.admit(connection, lease))


async def test_arguments_are_checked(side, connection, lease) -> None:
    with pytest.raises(ValueError, match="wait must be 0 or more"):
        postgres.admit(connection, lease, wait=-1)
    with pytest.raises(TypeError, match="takes a lease, not str"):
        postgres.admit(connection, "account:1")
    with pytest.raises(TypeError, match="ensure_connection"):
        postgres.admit(None, lease)

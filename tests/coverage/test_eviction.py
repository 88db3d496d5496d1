"""Eviction ends the backends that hold a resource under an older token, and no other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema.names import ADMISSION_BLOCKED, EVICT, STALE
from tests.schema.sql import ACCOUNT, ALICE, BOB, admit, enter, refused, wait_until_blocked

if TYPE_CHECKING:
    from tests.schema.conftest import Connect

EVICT_NOW = "SELECT fencing.evict(%s, %s, clock_timestamp())"


@pytest.fixture
def holder(accounts, connect: Connect) -> psycopg.Connection:
    """A transaction under token 1, which keeps token 2 waiting."""
    admit(accounts, 1)
    connection = connect()
    enter(connection)
    return connection


def evict(connection: psycopg.Connection, token: int = 2, resource: str = ACCOUNT) -> list[int]:
    row = connection.execute(EVICT_NOW, [resource, token]).fetchone()
    assert row is not None
    return row[0]


def is_alive(connection: psycopg.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.errors.AdminShutdown:
        return False
    return True


def test_the_holder_is_ended_and_its_successor_comes_in(accounts, holder):
    assert evict(accounts) == [holder.info.backend_pid]
    assert not is_alive(holder)
    assert admit(accounts, 2, BOB, wait_ms=10_000)


def test_every_holder_of_that_lease_is_ended(accounts, holder, connect):
    second = connect()
    enter(second)
    assert sorted(evict(accounts)) == sorted(c.info.backend_pid for c in (holder, second))


def test_a_holder_of_another_resource_is_left_alone(accounts, holder, connect):
    admit(accounts, 1, resource="account:43")
    other = connect()
    enter(other, ("account:43", 1, ALICE))
    assert other.info.backend_pid not in evict(accounts)
    assert is_alive(other)


def test_who_only_hashes_alike_is_left_alone(accounts, connect):
    """The lock of another resource with the same key: it waits for ours, and is none of ours."""
    admit(accounts, 1)
    other = connect()
    other.execute("SELECT pg_advisory_xact_lock_shared(fencing.lock_key(%s))", [ACCOUNT])
    with refused(ADMISSION_BLOCKED):
        admit(accounts, 2)
    assert evict(accounts) == []
    assert is_alive(other)


def test_who_has_the_same_identity_but_not_the_lock_is_left_alone(accounts, connect):
    admit(accounts, 1)
    other = connect()
    other.execute("SELECT pg_advisory_xact_lock_shared(fencing.identity_key(%s))", [ACCOUNT])
    assert evict(accounts) == []
    assert is_alive(other)


@pytest.mark.parametrize("token", [1, 0])
def test_a_holder_that_is_current_or_newer_is_never_ended(accounts, holder, token):
    with refused(STALE):
        evict(accounts, token)
    assert is_alive(holder)


def test_a_transaction_that_began_after_the_wait_is_left_alone(accounts, holder, connect):
    since = accounts.execute("SELECT EXTRACT(epoch FROM clock_timestamp())").fetchone()[0]
    late = connect()
    enter(late)
    statement = EVICT.replace(":resource", "%s").replace(":token", "%s").replace(":since", "%s")
    ended = accounts.execute(statement, [ACCOUNT, 2, since]).fetchone()[0]
    assert ended == [holder.info.backend_pid]
    assert is_alive(late)


def test_another_admission_that_waits_or_is_at_it_is_left_alone(accounts, holder, connect):
    with ThreadPoolExecutor() as threads:
        waiter = connect(autocommit=True)
        late = threads.submit(admit, waiter, 3, BOB, wait_ms=10_000)
        wait_until_blocked(accounts, waiter.info.backend_pid)
        assert evict(accounts) == [holder.info.backend_pid]
        assert late.result()


def test_an_admission_in_progress_is_left_alone(accounts, connect):
    admit(accounts, 1)
    admitting = connect()
    admit(admitting, 3, BOB)
    assert evict(accounts) == []
    admitting.commit()
    with refused(STALE):
        evict(accounts)


def test_who_asks_does_not_end_itself(accounts, holder, connect):
    asking = connect()
    enter(asking)
    assert evict(asking) == [holder.info.backend_pid]
    assert is_alive(asking)


def test_where_nobody_holds_it_nobody_is_ended(accounts):
    admit(accounts, 1)
    assert evict(accounts) == []


def test_the_same_resource_in_another_database_is_another(accounts, holder, database):
    from tests.support.databases import plain_url

    with psycopg.connect(plain_url(database), autocommit=True) as other:
        keys = accounts.execute(
            "SELECT fencing.lock_key(%(r)s), fencing.identity_key(%(r)s)", {"r": ACCOUNT}
        ).fetchone()
        other.execute("BEGIN")
        other.execute(
            "SELECT pg_advisory_xact_lock_shared(%s), pg_advisory_xact_lock_shared(%s)", keys
        )
        assert evict(accounts) == [holder.info.backend_pid]
        assert is_alive(other)

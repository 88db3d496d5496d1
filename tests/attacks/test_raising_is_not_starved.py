"""A fence is raised however busily its holder writes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fencing.schema import ddl
from fencing.schema.names import STALE
from tests.schema.sql import admit, enter, mark, refused, run, wait_until_blocked

WRITE = "UPDATE accounts SET balance = 0 WHERE id = 42"
LOCK_NOT_AVAILABLE = "55P03"


@pytest.fixture
def writing(accounts, connect):
    """A transaction of the holder's, which has written another table under the same resource."""
    accounts.execute("CREATE TABLE entries (id bigint)")
    run(accounts, ddl.fence_table("entries", "account:{id}"))
    admit(accounts, 1)
    connection = connect()
    enter(connection)
    connection.execute("INSERT INTO entries VALUES (42)")
    return connection


def test_the_next_transaction_of_the_holder_waits_for_who_raises_the_fence(
    accounts, connect, writing
):
    raising, following = connect(autocommit=True), connect()
    with ThreadPoolExecutor() as threads:
        raised = threads.submit(raising.execute, "SELECT fencing.raise_fence('account:42', 2)")
        wait_until_blocked(accounts, raising.info.backend_pid)
        following.execute("SET lock_timeout = '10ms'")
        with refused(LOCK_NOT_AVAILABLE):
            enter(following)
        writing.commit()
        raised.result()
    assert mark(accounts)[0] == 2


def test_a_maintenance_does_not_wait_for_who_has_only_read(accounts, connect):
    admit(accounts, 1)
    reading = connect()
    enter(reading)
    accounts.execute("SET lock_timeout = '1s'")
    run(accounts, [*ddl.maintain("accounts"), WRITE])
    with refused(STALE):
        reading.execute(WRITE)

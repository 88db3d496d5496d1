"""The guard's SQL as a bare psycopg connection speaks it: nothing of the package's own hooks."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema import ddl
from fencing.schema.names import FENCE_TABLE, claim_item

if TYPE_CHECKING:
    from collections.abc import Iterator

ACCOUNT = "account:42"
ALICE, BOB = "a" * 32, "b" * 32


def admit(
    connection: psycopg.Connection,
    token: int,
    holder: str = ALICE,
    *,
    resource: str = ACCOUNT,
    wait_ms: int = 0,
) -> bool:
    row = connection.execute(
        "SELECT fencing.admit(%s, %s, %s, 'test', %s)", (resource, token, holder, wait_ms)
    ).fetchone()
    assert row is not None
    return row[0]


def enter(
    connection: psycopg.Connection,
    *items: str | tuple[str, int, str],
    limit_ms: int | None = None,
) -> None:
    """Present leases; without any, Alice's token 1 on the account."""
    leases = items or ((ACCOUNT, 1, ALICE),)
    text = " ".join(item if isinstance(item, str) else claim_item(*item) for item in leases)
    connection.execute("SELECT fencing.enter(%s, %s)", (text, limit_ms))


def run(connection: psycopg.Connection, statements: list[str]) -> None:
    """All of them in one transaction, or in the one in progress."""
    with connection.transaction():
        for statement in statements:
            connection.execute(statement.encode())


def make_accounts(connection: psycopg.Connection) -> None:
    """A guarded table with the rows 42 and 43."""
    connection.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, balance int NOT NULL)")
    connection.execute("INSERT INTO accounts VALUES (42, 100), (43, 100)")
    run(connection, ddl.fence_table("accounts", "account:{id}"))


def mark(connection: psycopg.Connection, resource: str = ACCOUNT) -> tuple[int, str] | None:
    return connection.execute(
        f"SELECT token, holder FROM {FENCE_TABLE} WHERE resource = %s", (resource,)
    ).fetchone()


def setting(connection: psycopg.Connection, name: str) -> str | None:
    row = connection.execute("SELECT current_setting(%s, true)", (name,)).fetchone()
    assert row is not None
    return row[0]


@contextmanager
def refused(
    sqlstate: str, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[psycopg.Error]]:
    """The server raises this SQLSTATE."""
    with pytest.raises(psycopg.Error, match=match) as caught:
        yield caught
    assert caught.value.sqlstate == sqlstate, caught.value


def wait_until_blocked(observer: psycopg.Connection, pid: int) -> None:
    """Until this backend waits for a lock; a test that only sleeps may look too early."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        row = observer.execute("SELECT cardinality(pg_blocking_pids(%s))", (pid,)).fetchone()
        if row and row[0]:
            return
        time.sleep(0.01)
    raise AssertionError(f"backend {pid} never waited")

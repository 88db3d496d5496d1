"""Fences of any age, and resources that share a floor."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Connect = Callable[..., psycopg.Connection]


@pytest.fixture
def connect(fenced_database: str) -> Iterator[Connect]:
    """Opens connections as the owner of schema fencing."""
    with ExitStack() as stack:

        def connect(*, autocommit: bool = True) -> psycopg.Connection:
            connection = psycopg.connect(plain_url(fenced_database), autocommit=autocommit)
            stack.callback(connection.close)
            return connection

        yield connect


@pytest.fixture
def owner(connect: Connect) -> psycopg.Connection:
    """The owner of schema fencing, in autocommit mode."""
    return connect()


def age(connection: psycopg.Connection, resource: str | None = None) -> None:
    """Let fences have been admitted in the year 2000; all of them, or one."""
    connection.execute(
        "UPDATE fencing.fence SET admitted_at = '2000-01-01' "
        "WHERE %(resource)s::text IS NULL OR resource = %(resource)s",
        {"resource": resource},
    )


def prune(
    connection: psycopg.Connection, after: str = "", examine: int = 1000, older_than: str = "1 day"
) -> tuple[int, int, str | None]:
    row = connection.execute(
        "SELECT pruned, busy, next FROM fencing.prune(CAST(%s AS interval), %s, %s)",
        (older_than, after, examine),
    ).fetchone()
    assert row is not None
    return row


def neighbours(connection: psycopg.Connection, count: int = 2) -> list[str]:
    """Resources that share a floor."""
    rows = connection.execute(
        "SELECT array_agg(r ORDER BY r) FROM (SELECT concat('r', n) AS r "
        "FROM generate_series(1, 20000) AS n) AS s GROUP BY fencing.bucket(r) LIMIT 1"
    ).fetchone()
    assert rows is not None
    return rows[0][:count]


def tokens(connection: psycopg.Connection) -> dict[str, int]:
    return dict(connection.execute("SELECT resource, token FROM fencing.fence").fetchall())

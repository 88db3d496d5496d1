"""Connections to a database that is emptied for each test.

One database serves a whole run, since making one takes ten times as long as emptying it.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import sql

from fencing.schema import ddl
from tests.schema.sql import make_accounts, run
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import DatabaseFactory

    Connect = Callable[..., psycopg.Connection]


@pytest.fixture(scope="session")
def scratch(database_factory: DatabaseFactory) -> Iterator[str]:
    """Address of the database, for psycopg."""
    with database_factory.empty() as url:
        yield plain_url(url)


@pytest.fixture
def connect(scratch: str) -> Iterator[Connect]:
    """Opens connections to a database with schema fencing alone; closed at the test's end."""
    with psycopg.connect(scratch, autocommit=True) as connection:
        _empty(connection)
        run(connection, ddl.install())
    with ExitStack() as stack:

        def connect(*, autocommit: bool = False, **options: str) -> psycopg.Connection:
            connection = psycopg.connect(scratch, autocommit=autocommit, **options)
            stack.callback(connection.close)
            return connection

        yield connect


def _empty(connection: psycopg.Connection) -> None:
    connection.execute("SET client_min_messages = warning")
    for (name,) in connection.execute(
        "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'"
    ).fetchall():
        connection.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(name)))
    connection.execute("CREATE SCHEMA public")
    connection.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")


@pytest.fixture
def admin(connect: Connect) -> psycopg.Connection:
    """The owner of everything, in autocommit mode."""
    return connect(autocommit=True)


@pytest.fixture
def accounts(admin: psycopg.Connection) -> psycopg.Connection:
    """As `admin`, with a guarded table `accounts`."""
    make_accounts(admin)
    return admin

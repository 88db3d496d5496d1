"""Connections to a database of each test's own, in which only schema fencing is."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema import ddl
from tests.schema.sql import make_accounts, run
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.databases import DatabaseFactory

    Connect = Callable[..., psycopg.Connection]


def install(url: str) -> None:
    """What a test finds."""
    with psycopg.connect(plain_url(url), autocommit=True) as connection:
        run(connection, ddl.install())


@pytest.fixture
def connect(database_factory: DatabaseFactory) -> Iterator[Connect]:
    """Opens connections to a database with schema fencing alone; closed at the test's end."""
    with database_factory.prepared(install) as url, ExitStack() as stack:

        def connect(*, autocommit: bool = False, **options: str) -> psycopg.Connection:
            connection = psycopg.connect(plain_url(url), autocommit=autocommit, **options)
            stack.callback(connection.close)
            return connection

        yield connect


@pytest.fixture
def admin(connect: Connect) -> psycopg.Connection:
    """The owner of everything, in autocommit mode."""
    return connect(autocommit=True)


@pytest.fixture
def accounts(admin: psycopg.Connection) -> psycopg.Connection:
    """As `admin`, with a guarded table `accounts`."""
    make_accounts(admin)
    return admin

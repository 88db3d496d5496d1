"""Carries statements out as they are: sends them, or prints them in offline mode.

Alembic's own ``op.execute(str)`` is not used: online it reads ``:name`` as a parameter, offline it
replaces tabs and strips, and both would change the names and templates in our statements, which
may contain anything.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from fencing.errors import FencingUsageError
from fencing.migration.found import Installed, has_schema
from fencing.migration.refusals import sqlstate, translated
from fencing.schema.names import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from alembic.operations import Operations
    from sqlalchemy import Connection

__all__ = [
    "execute",
    "require_absent",
    "require_installed",
    "require_transaction",
    "require_upgradable",
    "send",
]

# Nothing is a parameter, so no driver may look for one: a percent sign is a percent sign.
_AS_IT_IS = {"no_parameters": True}
# What only a transaction block takes, and what changes nothing there.
_IN_A_TRANSACTION = ("SAVEPOINT fencing_transaction", "RELEASE SAVEPOINT fencing_transaction")
_NO_TRANSACTION = "25P01"


def execute(operations: Operations, statements: Iterable[str]) -> None:
    """Send every statement, all or none, or print it in offline mode.

    Raises:
        ValueError, FencingError: See :func:`fencing.migration.refusals.translated`.
    """
    connection = _connection(operations)
    if connection is None:
        impl = operations.migration_context.impl
        for statement in statements:
            impl.static_output(statement + impl.command_terminator)
    else:
        send(connection, statements)


def send(connection: Connection, statements: Iterable[str]) -> None:
    """Send every statement, all or none, also where each would be a transaction of its own.

    Raises:
        ValueError, FencingError: See :func:`fencing.migration.refusals.translated`.
    """
    several = list(statements)
    with translated():
        if len(several) == 1 or in_transaction(connection):
            for statement in several:
                send_one(connection, statement)
        else:
            with _transaction(connection):
                for statement in several:
                    send_one(connection, statement)


def send_one(connection: Connection, statement: str) -> None:
    """Send a statement as it is."""
    connection.exec_driver_sql(statement, execution_options=_AS_IT_IS).close()


def in_transaction(connection: Connection) -> bool:
    """Whether the server has a transaction block open, whatever SQLAlchemy believes."""
    try:
        for statement in _IN_A_TRANSACTION:
            send_one(connection, statement)
    except DBAPIError as error:
        if sqlstate(error) == _NO_TRANSACTION:
            return False
        raise
    return True


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    """A transaction on a connection in AUTOCOMMIT, where SQLAlchemy's own are none."""
    send_one(connection, "BEGIN")
    try:
        yield
    except BaseException:
        send_one(connection, "ROLLBACK")
        raise
    send_one(connection, "COMMIT")


def require_installed(operations: Operations, *, guards: bool = False) -> None:
    """Look for schema ``fencing``; offline there is nothing to look at.

    Args:
        operations: The running Alembic operations.
        guards: Whether it must be of a version whose guards we know how to change.

    Raises:
        GuardNotInstalledError: It is not there.
        FencingUsageError: It is of a version that this package cannot work with.
    """
    connection = _connection(operations)
    if connection is not None:
        installed = Installed.in_database(connection)
        installed.require()
        if guards:
            installed.require_current()


def require_upgradable(operations: Operations) -> bool:
    """Whether there is something to upgrade; offline one cannot know.

    Raises:
        GuardNotInstalledError: There is no schema ``fencing``.
        FencingUsageError: It is of a newer version than this package knows.
    """
    connection = _connection(operations)
    return connection is None or Installed.in_database(connection).is_older()


def require_absent(operations: Operations) -> None:
    """Look for schema ``fencing``; offline there is nothing to look at.

    Raises:
        FencingUsageError: It is there.
    """
    connection = _connection(operations)
    if connection is not None and has_schema(connection):
        raise FencingUsageError(
            f'this database has a schema "{SCHEMA}" already, which this migration environment did '
            "not record: it was installed by another one, by `fencing install`, or by a script. "
            "Leave it to that one, or stamp this revision (`alembic stamp`)"
        )


def require_transaction(operations: Operations, operation: str) -> None:
    """Have the server say whether there is a transaction; offline, the one that runs the script.

    Args:
        operations: The running Alembic operations.
        operation: What needs one.

    Raises:
        FencingUsageError: There is none.
    """
    connection = _connection(operations)
    if connection is None:
        execute(operations, _IN_A_TRANSACTION)
    elif not in_transaction(connection):
        raise FencingUsageError(
            f"op.{operation}() lasts until its transaction ends, and this connection is in none, "
            "so the writes after it would be refused; run it outside of autocommit_block(), on a "
            "connection whose isolation level is not AUTOCOMMIT"
        )


def _connection(operations: Operations) -> Connection | None:
    context = operations.migration_context
    if context.dialect.name != "postgresql":
        raise FencingUsageError(
            f"only PostgreSQL can refuse writes by fencing token, not {context.dialect.name}"
        )
    return None if context.as_sql else context.connection

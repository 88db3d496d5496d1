"""Carries statements out as they are: sends them, or prints them in offline mode.

Alembic's own ``op.execute(str)`` is not used: online it reads ``:name`` as a parameter, offline it
replaces tabs and strips, and both would change the names and templates in our statements, which
may contain anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.errors import FencingUsageError
from fencing.schema.names import SCHEMA
from fencing.tables.found import Installed, has_schema
from fencing.tables.sending import IN_A_TRANSACTION, in_transaction, send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from alembic.operations import Operations
    from sqlalchemy import Connection

__all__ = [
    "execute",
    "require_absent",
    "require_installed",
    "require_transaction",
    "require_upgradable",
]


def execute(operations: Operations, statements: Iterable[str]) -> None:
    """Send every statement, all or none, or print it in offline mode.

    Raises:
        ValueError, FencingError: See :func:`fencing.tables.refusals.translated`.
    """
    connection = _connection(operations)
    if connection is None:
        impl = operations.migration_context.impl
        for statement in statements:
            impl.static_output(statement + impl.command_terminator)
    else:
        send(connection, statements)


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
        execute(operations, IN_A_TRANSACTION)
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

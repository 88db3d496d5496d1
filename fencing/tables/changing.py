"""The same without an Alembic context: on a connection of SQLAlchemy's, typed.

For tests, scripts and demonstrations. What happens belongs to the connection's transaction, and
committing it is the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.errors import FencingUsageError
from fencing.schema import ddl
from fencing.schema.declaration import declaration_of
from fencing.tables.found import Installed
from fencing.tables.sending import in_transaction, send

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection, Table

__all__ = ["alter_fence", "fence_table", "maintain", "unfence_table", "upgrade"]


def fence_table(
    connection: Connection,
    table: str | Table,
    *,
    resource: str | None = None,
    schema: str | None = None,
    operations: Iterable[str] | None = None,
    mode: str | None = None,
    lock_timeout: float = 5.0,
) -> None:
    """Guard a table: from now on it refuses writes that present no current lease.

    Args:
        connection: A connection to PostgreSQL; under asyncio through ``run_sync``.
        table: Name of the table, or a :class:`~sqlalchemy.schema.Table`, which brings its schema
            and what ``fenced_by`` has declared of it.
        resource: The resource template, such as ``"account:{id}"``; default: as declared.
        schema: Schema of the table; default: the Table's, or found by the search_path.
        operations: What to guard, of ``"insert"``, ``"update"`` and ``"delete"``; default: as
            declared, or all of them.
        mode: ``"enforce"`` or ``"observe"``; default: as declared, or ``"enforce"``.
        lock_timeout: Longest wait for transactions that have written the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type, or there is no template.
        ValueError: An argument makes no sense, or the template does not fit the table's columns.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The table is fenced already, or the schema is of another version.
        TableBusyError: It was not free in time; nothing has changed.
    """
    declared = declaration_of(table)
    if resource is None:
        if declared is None:
            raise TypeError(f"fence_table needs resource=: {table} is not declared with fenced_by")
        resource = declared.template.source
    if operations is None:
        operations = ddl.OPERATIONS if declared is None else declared.operations
    if mode is None:
        mode = "enforce" if declared is None else declared.mode
    name, schema = _named(connection, table, schema)
    statements = ddl.fence_table(
        name, resource, schema=schema, operations=operations, mode=mode, lock_timeout=lock_timeout
    )
    _send(connection, statements)


def alter_fence(
    connection: Connection,
    table: str | Table,
    *,
    resource: str | None = None,
    schema: str | None = None,
    operations: Iterable[str] | None = None,
    mode: str | None = None,
    lock_timeout: float = 5.0,
) -> None:
    """Change the guard of a table, without a moment in which the table has none.

    Args:
        connection: A connection to PostgreSQL.
        table: Name of the table, or a :class:`~sqlalchemy.schema.Table`.
        resource: Its new resource template; ``None`` keeps the one it has.
        schema: Schema of the table; default: the Table's, or found by the search_path.
        operations: What to guard from now on; ``None`` keeps what is guarded.
        mode: ``"enforce"`` or ``"observe"``; ``None`` keeps the one it has.
        lock_timeout: Longest wait for transactions that use the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument makes no sense, none changes anything, or the template does not
            fit the table's columns.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The table is not fenced, or the schema is of another version.
        TableBusyError: It was not free in time; nothing has changed.
    """
    name, schema = _named(connection, table, schema)
    statements = ddl.alter_fence(
        name,
        schema=schema,
        resource=resource,
        operations=operations,
        mode=mode,
        lock_timeout=lock_timeout,
    )
    _send(connection, statements)


def unfence_table(
    connection: Connection,
    table: str | Table,
    *,
    schema: str | None = None,
    lock_timeout: float = 5.0,
) -> None:
    """Remove the guard of a table.

    Args:
        connection: A connection to PostgreSQL.
        table: Name of the table, or a :class:`~sqlalchemy.schema.Table`.
        schema: Schema of the table; default: the Table's, or found by the search_path.
        lock_timeout: Longest wait for transactions that use the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument makes no sense.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The table is not fenced, or the schema is of another version.
        TableBusyError: It was not free in time; nothing has changed.
    """
    name, schema = _named(connection, table, schema)
    _send(connection, ddl.unfence_table(name, schema=schema, lock_timeout=lock_timeout))


def maintain(
    connection: Connection,
    table: str | Table,
    *,
    schema: str | None = None,
    lock_timeout: float = 5.0,
) -> None:
    """Let this transaction write all rows of a guarded table, until it ends.

    The table is locked against all other writers. Each fence whose rows are written is raised, so
    no lease that is held meanwhile is any good afterwards. It needs the rights of the owner of
    schema ``fencing``.

    Args:
        connection: A connection to PostgreSQL, with a transaction.
        table: Name of the table, or a :class:`~sqlalchemy.schema.Table`.
        schema: Schema of the table; default: the Table's, or found by the search_path.
        lock_timeout: Longest wait for transactions that have written the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument makes no sense.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The table is not fenced, the schema is of another version, or the
            connection is in AUTOCOMMIT.
        TableBusyError: It was not free in time; nothing has changed.
    """
    name, schema = _named(connection, table, schema)
    statements = ddl.maintain(name, schema=schema, lock_timeout=lock_timeout)
    Installed.in_database(connection).require_current()
    if not in_transaction(connection):
        raise FencingUsageError(
            "maintenance lasts until its transaction ends, and this connection is in none, so the "
            "writes after it would be refused; use one whose isolation level is not AUTOCOMMIT"
        )
    _send(connection, statements)


def upgrade(connection: Connection) -> bool:
    """Bring schema ``fencing`` and every guard to the version of this package.

    Nothing is unguarded meanwhile. Where :func:`fencing.migration.install` has installed the
    schema, that upgrades it too, and records the revision.

    Args:
        connection: A connection to PostgreSQL.

    Returns:
        Whether there was anything to do.

    Raises:
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: It is of a newer version than this package knows.
    """
    _check_dialect(connection)
    older = Installed.in_database(connection).is_older()
    if older:
        send(connection, ddl.upgrade())
    return older


def _named(
    connection: Connection, table: str | Table, schema: str | None
) -> tuple[str, str | None]:
    _check_dialect(connection)
    if isinstance(table, str):
        return table, schema
    return table.name, connection.schema_for_object(table) if schema is None else schema


def _send(connection: Connection, statements: list[str]) -> None:
    Installed.in_database(connection).require_current()
    send(connection, statements)


def _check_dialect(connection: Connection) -> None:
    if connection.dialect.name != "postgresql":
        raise FencingUsageError(
            f"only PostgreSQL can refuse writes by fencing token, not {connection.dialect.name}"
        )

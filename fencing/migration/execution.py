"""Carries statements out as they are: sends them, or prints them in offline mode.

Alembic's own ``op.execute(str)`` is not used: online it reads ``:name`` as a parameter, offline it
replaces tabs and strips, and both would change the names and templates in our statements, which
may contain anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.errors import FencingUsageError, GuardNotInstalledError
from fencing.migration.refusals import translated
from fencing.schema.names import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterable

    from alembic.operations import Operations
    from sqlalchemy import Connection

__all__ = ["execute", "has_schema", "require_absent", "require_installed"]

_IS_INSTALLED = f"SELECT to_regnamespace('{SCHEMA}') IS NOT NULL"
# Nothing is a parameter, so no driver may look for one: a percent sign is a percent sign.
_AS_IT_IS = {"no_parameters": True}


def execute(operations: Operations, statements: Iterable[str]) -> None:
    """Send every statement, or print it in offline mode.

    Raises:
        ValueError, FencingUsageError: See :func:`fencing.migration.refusals.translated`.
    """
    connection = _connection(operations)
    impl = operations.migration_context.impl
    for statement in statements:
        if connection is None:
            impl.static_output(statement + impl.command_terminator)
        else:
            with translated():
                connection.exec_driver_sql(statement, execution_options=_AS_IT_IS).close()


def require_installed(operations: Operations) -> None:
    """Look for schema ``fencing``; offline there is nothing to look at.

    Raises:
        GuardNotInstalledError: It is not there.
    """
    connection = _connection(operations)
    if connection is not None and not has_schema(connection):
        raise GuardNotInstalledError(
            f'this database has no schema "{SCHEMA}": run op.install_fencing() in an earlier '
            "migration, or `fencing install` on the command line"
        )


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


def has_schema(connection: Connection) -> bool:
    """Whether the database has schema ``fencing``."""
    return bool(connection.exec_driver_sql(_IS_INSTALLED).scalar())


def _connection(operations: Operations) -> Connection | None:
    context = operations.migration_context
    if context.dialect.name != "postgresql":
        raise FencingUsageError(
            f"only PostgreSQL can refuse writes by fencing token, not {context.dialect.name}"
        )
    return None if context.as_sql else context.connection

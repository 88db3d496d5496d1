"""What of this package a database has: the version of the schema, and the guards."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from sqlalchemy import text

from fencing.errors import FencingUsageError, GuardNotInstalledError
from fencing.schema import ddl
from fencing.schema.names import SCHEMA, VERSIONS
from fencing.schema.template import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

__all__ = ["Found", "Installed", "covered", "has_schema", "is_ours"]

_IS_INSTALLED = f"SELECT to_regnamespace('{SCHEMA}') IS NOT NULL"
_HAS_FENCE = """
SELECT count(*) = 3 FROM pg_catalog.pg_attribute
WHERE attrelid = to_regclass('fencing.fence') AND attname IN ('resource', 'token', 'holder')
"""
_HAS_VERSIONS = f"SELECT to_regprocedure('{SCHEMA}.versions()') IS NOT NULL"
_GUARDS = """
SELECT CAST(table_schema AS text), CAST(table_name AS text), resource, operations,
    pg_table_is_visible(table_oid), mode, covered_by IS NOT NULL
FROM fencing.guards
"""
_GUARD_OF = text(
    "SELECT covered_by IS NOT NULL FROM fencing.guards "
    "WHERE table_oid = to_regclass(CAST(:table AS text))"
)
# Version 1 had no view; its facts are in the comments of the triggers.
_GUARDS_OF_VERSION_1 = """
SELECT DISTINCT CAST(n.nspname AS text), CAST(c.relname AS text),
    obj_description(t.oid, 'pg_trigger'), pg_table_is_visible(c.oid)
FROM pg_trigger AS t
JOIN pg_proc AS p ON p.oid = t.tgfoid AND p.pronamespace = to_regnamespace('fencing')
JOIN pg_class AS c ON c.oid = t.tgrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE t.tgname IN ('fencing_insert', 'fencing_update', 'fencing_delete')
"""


@dataclass(frozen=True, slots=True)
class Found:
    """A guard that a database has.

    Attributes:
        schema: Schema of its table.
        table: Name of its table.
        resource: The resource template.
        operations: What it guards.
        visible: Whether its table is found without its schema, by the search_path.
        mode: ``"enforce"`` or ``"observe"``.
        covered: Whether it is the guard of another table, of which this one is a part.
    """

    schema: str
    table: str
    resource: str
    operations: tuple[str, ...]
    visible: bool
    mode: str = "enforce"
    covered: bool = False


@dataclass(frozen=True, slots=True)
class Installed:
    """The schema ``fencing`` of a database.

    Attributes:
        version: Its version; 0 where there is none.
        oldest_client: The oldest version of this package's schema that it serves.
    """

    version: int
    oldest_client: int = 0

    @classmethod
    def in_database(cls, connection: Connection) -> Self:
        """Look."""
        if not has_schema(connection):
            return cls(0)
        if not connection.exec_driver_sql(_HAS_VERSIONS).scalar():
            return cls(1)
        version, oldest_client = connection.exec_driver_sql(VERSIONS).one()
        return cls(version, oldest_client)

    def require(self) -> None:
        """Raise unless it is there.

        Raises:
            GuardNotInstalledError: It is not.
        """
        if not self.version:
            raise GuardNotInstalledError(
                f'this database has no schema "{SCHEMA}": run op.install_fencing() in an earlier '
                "migration, or `fencing install` on the command line"
            )

    def require_current(self) -> None:
        """Raise unless this package can change its guards.

        Raises:
            GuardNotInstalledError: It is not there.
            FencingUsageError: It is too old, or too new.
        """
        self.require()
        if self.oldest_client > ddl.SCHEMA_VERSION:
            raise self._newer()
        if self.version < ddl.SCHEMA_VERSION:
            raise FencingUsageError(
                f'the schema "{SCHEMA}" of this database is of version {self.version}, and this '
                f"package needs {ddl.SCHEMA_VERSION}: run op.upgrade_fencing() in an earlier "
                "migration, or `fencing install` on the command line"
            )

    def is_older(self) -> bool:
        """Whether it is older than this package.

        Raises:
            GuardNotInstalledError: It is not there.
            FencingUsageError: It is newer.
        """
        self.require()
        if self.version > ddl.SCHEMA_VERSION:
            raise self._newer()
        return self.version < ddl.SCHEMA_VERSION

    def _newer(self) -> FencingUsageError:
        return FencingUsageError(
            f'the schema "{SCHEMA}" of this database is of version {self.version}, and this '
            f"package knows none newer than {ddl.SCHEMA_VERSION}: upgrade the package fencing"
        )

    def is_current(self) -> bool:
        """Whether it is there, and this package can change its guards."""
        return self.version >= ddl.SCHEMA_VERSION >= self.oldest_client

    def guards(self, connection: Connection) -> Iterator[Found]:
        """Every guard of the database."""
        if self.version == 1:
            for schema, table, comment, visible in connection.exec_driver_sql(_GUARDS_OF_VERSION_1):
                facts = json.loads(comment)
                yield Found(schema, table, facts["resource"], tuple(facts["operations"]), visible)
        elif self.version:
            for schema, table, resource, operations, *rest in connection.exec_driver_sql(_GUARDS):
                yield Found(schema, table, resource, ddl.check_operations(operations), *rest)


def covered(connection: Connection, table: str, schema: str | None) -> bool | None:
    """Whether a table is guarded as a part of another; ``None`` where nothing guards it."""
    name = quote_identifier(table)
    if schema is not None:
        name = f"{quote_identifier(schema)}.{name}"
    found: bool | None = connection.scalar(_GUARD_OF, {"table": name})
    return found


def has_schema(connection: Connection) -> bool:
    """Whether the database has schema ``fencing``."""
    return bool(connection.exec_driver_sql(_IS_INSTALLED).scalar())


def is_ours(connection: Connection) -> bool:
    """Whether schema ``fencing`` is that of this package, in whichever version."""
    return bool(connection.exec_driver_sql(_HAS_FENCE).scalar())

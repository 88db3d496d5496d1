"""``metadata.create_all()`` and ``drop_all()`` make and remove the guards that are declared.

The listeners are on the classes, so that they serve copies of a table as well (``to_metadata()``
copies a declaration, and no listener). They act where SQLAlchemy itself creates or drops: Alembic
fires the same events, and has operations of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import DDL, Connection, MetaData, Table, event
from sqlalchemy.sql.ddl import SchemaDropper, SchemaGenerator

from fencing.schema import ddl
from fencing.schema.declaration import declaration_of
from fencing.tables.changing import fence_table
from fencing.tables.found import Installed, covered, has_schema
from fencing.tables.sending import send, transaction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencing.schema.declaration import Declaration

__all__: list[str] = []

_LOCK = "SELECT pg_advisory_xact_lock(6073413, 2)"


@event.listens_for(MetaData, "after_create")
def _create_all(
    _: MetaData,
    connection: Connection,
    tables: Iterable[Table] = (),
    _ddl_runner: object = None,
    **__: object,
) -> None:
    # Only now, so that whoever listens to a table's own creation can still fill it.
    _fence(connection, _ddl_runner, tables)


@event.listens_for(Table, "after_create")
def _create_one(
    table: Table,
    connection: Connection,
    _ddl_runner: object = None,
    _is_metadata_operation: bool = False,  # noqa: FBT001, FBT002 -- SQLAlchemy's signature
    **_: object,
) -> None:
    if not _is_metadata_operation:
        _fence(connection, _ddl_runner, [table])


@event.listens_for(Table, "after_drop")
def _drop(table: Table, connection: Connection, _ddl_runner: object = None, **_: object) -> None:
    """The triggers of a guard go with its table, and only with it; its function would be left."""
    if not isinstance(_ddl_runner, SchemaDropper) or declaration_of(table) is None:
        return
    if connection.dialect.name != "postgresql":
        return
    if not isinstance(connection, Connection):
        _dump(connection, ddl.drop_unused())
        return
    if Installed.in_database(connection).is_current():
        send(connection, ddl.drop_unused())


def _fence(connection: Connection, runner: object, tables: Iterable[Table]) -> None:
    declared = [(t, d) for t in tables if (d := declaration_of(t)) is not None]
    if not declared or not isinstance(runner, SchemaGenerator):
        return
    if connection.dialect.name != "postgresql":
        return
    if not isinstance(connection, Connection):
        for table, declaration in declared:
            _dump(connection, _statements(table, declaration))
        return
    _install_where_absent(connection)
    Installed.in_database(connection).require_current()
    for table, _ in declared:
        # A part of a guarded table is guarded with it, and a listener may have been faster.
        if covered(connection, *_named(connection, table)) is None:
            fence_table(connection, table)


def _install_where_absent(connection: Connection) -> None:
    if has_schema(connection):
        return
    with transaction(connection):
        send(connection, [_LOCK])
        if not has_schema(connection):
            send(connection, ddl.install())


def _named(connection: Connection, table: Table) -> tuple[str, str | None]:
    return table.name, connection.schema_for_object(table)


def _statements(table: Table, declaration: Declaration) -> list[str]:
    return ddl.fence_table(
        table.name,
        declaration.template.source,
        schema=table.schema,
        operations=declaration.operations,
        mode=declaration.mode,
    )


def _dump(connection: Any, statements: Iterable[str]) -> None:  # noqa: ANN401 -- a mock engine's, which is no Connection
    """For a mock engine, which takes nothing but elements of SQLAlchemy's."""
    for statement in statements:
        connection.execute(DDL(statement.replace("%", "%%")))  # type: ignore[no-untyped-call]  # DDL has no types

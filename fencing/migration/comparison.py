"""Autogenerate: what makes the guards of a database those that are declared.

Compared are tables that are in the metadata. The operations go where the tables' own changes let
them: a guard comes after the columns its template names, and leaves before they do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from alembic.operations import ops

from fencing.migration.filters import is_ours
from fencing.migration.guards import AlterFenceOp, FenceTableOp, UnfenceTableOp
from fencing.migration.operations import InstallFencingOp, UpgradeFencingOp
from fencing.schema.declaration import INFO_KEY, Declaration, declaration_of
from fencing.schema.template import Template
from fencing.tables.found import Installed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from alembic.autogenerate.api import AutogenContext
    from alembic.operations import MigrateOperation
    from sqlalchemy import Table

    from fencing.tables.found import Found

__all__ = ["compare_guards"]


class Name(NamedTuple):
    """A table; its schema is ``None`` for what is found without one."""

    schema: str | None
    table: str


@dataclass(slots=True)
class Change:
    """What is to be done about one guard.

    Attributes:
        before: Comes before all changes of the table.
        between: Comes after what is added to it or altered, before what is dropped from it.
        after: Comes after all of it.
    """

    before: MigrateOperation | None = None
    between: MigrateOperation | None = None
    after: MigrateOperation | None = None

    @property
    def all(self) -> list[MigrateOperation]:
        """In order."""
        return [op for op in (self.before, self.between, self.after) if op is not None]


def compare_guards(context: AutogenContext, upgrade: ops.UpgradeOps) -> None:
    """Add to ``upgrade`` what makes the guards those that are declared.

    Args:
        context: The comparison; its connection is where to look.
        upgrade: What has been found so far.

    Raises:
        FencingUsageError: The database has a newer schema than this package knows.
    """
    connection = context.connection
    if connection is not None and connection.dialect.name == "postgresql":
        comparison = _Comparison(context, upgrade)
        comparison.forget_ours()
        comparison.compare()


class _Comparison:
    def __init__(self, context: AutogenContext, upgrade: ops.UpgradeOps) -> None:
        assert context.connection is not None  # noqa: S101 - narrows for the type checker
        self._context = context
        self._upgrade = upgrade
        self._default = context.connection.dialect.default_schema_name
        self._installed = Installed.in_database(context.connection)
        found = list(self._installed.guards(context.connection))
        self._guards = {name: g for g in found if not g.covered for name in self._names(g)}
        self._covered = {name for g in found if g.covered for name in self._names(g)}
        self._created = {
            self._name(op.schema, op.table_name): op
            for op in upgrade.ops
            if isinstance(op, ops.CreateTableOp)
        }
        self._dropped = {
            self._name(op.schema, op.table_name)
            for op in upgrade.ops
            if isinstance(op, ops.DropTableOp)
        }

    def forget_ours(self) -> None:
        """Nobody's metadata has our own tables, and nobody wants them dropped for that."""
        self._upgrade.ops[:] = [
            op
            for op in self._upgrade.ops
            if not (
                isinstance(op, ops.DropTableOp | ops.ModifyTableOps)
                and is_ours(op.schema, op.table_name)
            )
        ]

    def compare(self) -> None:
        """Insert the operations."""
        changes = {name: change for name, change in self._changes() if change.all}
        placed = list(self._placed(changes))
        if changes and not self._installed.version:
            placed.insert(0, InstallFencingOp())
        elif self._concerned and self._installed.is_older():
            placed.insert(0, UpgradeFencingOp())
        self._upgrade.ops[:] = placed

    @property
    def _concerned(self) -> bool:
        """Whether it is this metadata that the schema is there for."""
        return self._installed.version > 0 and any(
            declaration_of(table) for table in self._context.sorted_tables
        )

    def _changes(self) -> Iterator[tuple[Name, Change]]:
        for table in self._context.sorted_tables:
            name = self._name(table.schema, table.name)
            if name in self._created or self._is_compared(table, name):
                yield name, self._change(table, name)
        for name in self._dropped & self._guards.keys():
            # Its reverse makes the table again, which must not be without its guard then.
            yield name, Change(before=_unfence(name, self._guards[name]))

    def _is_compared(self, table: Table, name: Name) -> bool:
        # What filters by name leave out is new to Alembic: it has created it before we come.
        return (
            name not in self._covered
            and self._context.run_object_filters(table, table.name, "table", False, None)  # noqa: FBT003 - Alembic's signature
        )

    def _change(self, table: Table, name: Name) -> Change:
        wanted, guard = declaration_of(table), self._guards.get(name)
        if name in self._created:
            # Alembic would write it into the migration, where nobody can read it.
            self._created[name].info.pop(INFO_KEY, None)
            guard = None
        if wanted is None and guard is None:
            return Change()
        if wanted is None:
            assert guard is not None  # noqa: S101 - narrows for the type checker
            return Change(before=_unfence(name, guard))
        target = Name(table.schema, table.name)
        if guard is None:
            return Change(after=_fence(target, wanted))
        if self._retypes(name, {*Template.parse(guard.resource).columns, *wanted.template.columns}):
            # PostgreSQL alters no type of a column that a trigger depends on.
            return Change(before=_unfence(target, guard), after=_fence(target, wanted))
        return Change(between=_alter(target, guard, wanted))

    def _retypes(self, name: Name, columns: set[str]) -> bool:
        return any(
            isinstance(part, ops.AlterColumnOp)
            and part.modify_type is not None
            and part.column_name in columns
            for op in self._upgrade.ops
            if isinstance(op, ops.ModifyTableOps) and self._name(op.schema, op.table_name) == name
            for part in op.ops
        )

    def _placed(self, changes: dict[Name, Change]) -> Iterator[MigrateOperation]:
        """The operations found so far, with ours among them."""
        for op in self._upgrade.ops:
            name = self._name(getattr(op, "schema", None), getattr(op, "table_name", ""))
            change = changes.get(name)
            if change is None or isinstance(op, ops.CreateTableOp):
                yield op
            elif isinstance(op, ops.ModifyTableOps) and name not in self._created:
                del changes[name]
                yield from _among(op, change)
            elif isinstance(op, ops.DropTableOp):
                del changes[name]
                yield from change.all
                yield op
            else:
                yield op
        # What concerns no table that changes; of one that is created, after its indexes too.
        for change in changes.values():
            yield from change.all

    def _names(self, guard: Found) -> Iterator[Name]:
        """Alembic finds a table without its schema where the search_path has it."""
        yield self._name(guard.schema, guard.table)
        if guard.visible:
            yield Name(None, guard.table)

    def _name(self, schema: str | None, table: str) -> Name:
        return Name(None if schema == self._default else schema, str(table))


def _among(modify: ops.ModifyTableOps, change: Change) -> Iterator[MigrateOperation]:
    if change.between is None:
        parts = [modify]
    else:
        first = next(
            (at for at, op in enumerate(modify.ops) if isinstance(op, ops.DropColumnOp)),
            len(modify.ops),
        )
        parts = [
            ops.ModifyTableOps(modify.table_name, part, schema=modify.schema)
            for part in (modify.ops[:first], modify.ops[first:])
        ]
    in_order = [change.before, parts[0], change.between, *parts[1:], change.after]
    yield from (
        op
        for op in in_order
        if op is not None and not (isinstance(op, ops.ModifyTableOps) and op.is_empty())
    )


def _fence(name: Name, wanted: Declaration) -> FenceTableOp:
    return FenceTableOp(
        name.table,
        resource=wanted.template.source,
        schema=name.schema,
        operations=wanted.operations,
        mode=wanted.mode,
    )


def _unfence(name: Name, guard: Found) -> UnfenceTableOp:
    return UnfenceTableOp(
        name.table,
        schema=name.schema,
        resource=guard.resource,
        operations=guard.operations,
        mode=guard.mode,
    )


def _alter(name: Name, guard: Found, wanted: Declaration) -> AlterFenceOp | None:
    there = {"resource": guard.resource, "operations": guard.operations, "mode": guard.mode}
    here = {
        "resource": wanted.template.source,
        "operations": wanted.operations,
        "mode": wanted.mode,
    }
    changed: dict[str, Any] = {}
    for fact, value in here.items():
        if value != there[fact]:
            changed |= {fact: value, f"existing_{fact}": there[fact]}
    return AlterFenceOp(name.table, schema=name.schema, **changed) if changed else None

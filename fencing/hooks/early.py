"""Friendly refusals before anything is sent.

Only what :func:`fenced_by` declares can be seen from here, and only in statements that SQLAlchemy
has built: ``text()`` and a driver's cursor are opaque. The database refuses those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Delete, Insert, Update, text

from fencing.errors import GuardNotInstalledError, UnfencedWriteError
from fencing.hooks.declare import declaration_of
from fencing.schema.names import TRIGGERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine.interfaces import ExecutionContext
    from sqlalchemy.schema import Table

    from fencing.hooks.declare import Declaration

__all__ = ["GuardLook", "declared_writes", "unfenced"]

_OPERATION = {Insert: "insert", Update: "update", Delete: "delete"}

# Enabled for ordinary sessions: "O" (origin) and "A" (always).
_FIND_GUARD = text(
    "SELECT to_regclass(:table) IS NOT NULL, ARRAY("
    "SELECT CAST(t.tgname AS text) FROM pg_catalog.pg_trigger AS t "
    "JOIN pg_catalog.pg_proc AS p ON p.oid = t.tgfoid "
    "WHERE t.tgrelid = to_regclass(:table) AND t.tgenabled IN ('O', 'A') "
    "AND p.pronamespace = to_regnamespace('fencing'))"
)

# A maintenance is told by its lock: who may write the table needs no right to see maintenances. It
# may be another's lock, and then it is the database that refuses.
_LETS_PASS = text(
    "SELECT EXISTS (SELECT FROM fencing.guards AS g "
    "WHERE g.table_oid = to_regclass(:table) AND g.mode = 'observe') "
    "OR EXISTS (SELECT FROM pg_catalog.pg_locks AS l "
    "WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.granted "
    "AND l.relation = to_regclass(:table) AND l.mode = 'ExclusiveLock')"
)


def declared_writes(context: ExecutionContext) -> Iterator[tuple[Table, str, Declaration]]:
    """The declared tables that a statement writes in a way they are fenced against.

    A table that is declared to be observed only is not among them: nothing about it may fail.
    """
    for statement in _written(context):
        operation = next((o for kind, o in _OPERATION.items() if isinstance(statement, kind)), "")
        table: Any = getattr(statement, "table", None)
        declaration = declaration_of(table)
        if (
            declaration is not None
            and declaration.mode == "enforce"
            and operation in declaration.operations
        ):
            yield table, operation, declaration


def _written(context: Any) -> list[object]:  # noqa: ANN401 - SQLAlchemy's default one knows more
    # Without, it is a statement that went to the driver as it was.
    ctes = getattr(context.compiled, "ctes", None)
    if not (ctes or context.isinsert or context.isupdate or context.isdelete):
        return []  # most statements; text(), too
    # A data-modifying CTE arrives inside a SELECT, or beside another write.
    return [context.invoked_statement, *(cte.element for cte in ctes or ())]


class GuardLook:
    """Looks at the guards of declared tables; what is there is remembered.

    Args:
        options: Execution options of the look.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._found: dict[str, frozenset[str]] = {}

    def require(
        self, context: ExecutionContext, table: Table, operation: str, declaration: Declaration
    ) -> None:
        """Raise unless the database guards ``table`` against ``operation``.

        Args:
            context: The write; its connection is where to look, the first time.
            table: A table that is declared fenced.
            operation: ``"insert"``, ``"update"`` or ``"delete"``.
            declaration: What is declared of it.

        Raises:
            GuardNotInstalledError: It does not.
        """
        name = _name_of(context, table)
        if TRIGGERS[operation] in self._found.get(name, ()):
            return
        exists, triggers = context.root_connection.execute(
            _FIND_GUARD, {"table": name}, execution_options=self._options
        ).one()
        if not exists:
            return  # what the database says about that is clearer
        if TRIGGERS[operation] not in triggers:
            raise GuardNotInstalledError(
                f"{table.fullname} is declared fenced, and this database does not guard it "
                f"against {operation.upper()}, so nothing was sent; add to a migration: "
                f"op.fence_table({table.name!r}, resource={declaration.template.source!r})",
                table=table.fullname,
            )
        self._found[name] = frozenset(triggers)

    def may_let_pass(self, context: ExecutionContext, table: Table) -> bool:
        """Whether the guard of ``table`` only observes, or this transaction may maintain it.

        Asked anew each time, which is before a refusal: a guard is set back to observing when
        refusals have to stop at once.
        """
        return bool(
            context.root_connection.execute(
                _LETS_PASS,
                {"table": _name_of(context, table)},
                execution_options=self._options,
            ).scalar()
        )


def _name_of(context: ExecutionContext, table: Table) -> str:
    translate = context.execution_options.get("schema_translate_map") or {}
    schema = translate.get(table.schema, table.schema)
    quote = context.root_connection.dialect.identifier_preparer.quote_identifier
    return quote(table.name) if schema is None else f"{quote(schema)}.{quote(table.name)}"


def unfenced(table: Table, operation: str, declaration: Declaration, why: str) -> Exception:
    """The error for a write without a lease."""
    return UnfencedWriteError(
        f"unfenced write: {operation.upper()} of {table.fullname} needs a lease on "
        f"{declaration.template.source!r}, and {why}; nothing was sent",
        table=table.fullname,
    )

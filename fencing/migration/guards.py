"""The operations on the guard of a table, as a migration says them.

An operation checks its arguments when it is created, so that bad input never reaches a database
and fails in offline mode as well. It renders its statements through :mod:`fencing.schema.ddl`;
:mod:`fencing.migration.execution` sends or prints them as they are.

Alembic passes itself as a parameter that has to be called ``operations``, which is also the name
of an argument of ours. It is therefore positional-only below, and our argument goes through
``**guard`` to the constructor, which knows it by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic.operations import Operations

from fencing.migration.base import FencingOperation
from fencing.migration.execution import execute, require_installed, require_transaction
from fencing.schema import ddl
from fencing.schema.template import Template

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencing.migration.base import Call

__all__ = ["AlterFenceOp", "FenceTableOp", "FencedMaintenanceOp", "UnfenceTableOp"]

_LOCK_TIMEOUT = 5.0
"""Seconds."""


@Operations.register_operation("fence_table")
class FenceTableOp(FencingOperation):
    """Guards a table.

    Args:
        table: Name of the table.
        resource: Its resource template, such as ``"account:{id}"``; fields name columns of the
            database.
        schema: Schema of the table; default: found by the search_path.
        operations: What to guard, of ``"insert"``, ``"update"`` and ``"delete"``.
        mode: ``"enforce"``: refuse writes without a current lease; ``"observe"``: report them.
        lock_timeout: Longest wait for transactions that have written the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The template, the operations, the mode or the time-out make no sense.
    """

    def __init__(
        self,
        table: str,
        *,
        resource: str,
        schema: str | None = None,
        operations: Iterable[str] = ddl.OPERATIONS,
        mode: str = "enforce",
        lock_timeout: float = _LOCK_TIMEOUT,
    ) -> None:
        self.table = table
        self.schema = schema
        self.resource = Template.parse(resource).source
        self.operations = ddl.check_operations(operations)
        self.mode = ddl.check_mode(mode)
        self.lock_timeout = lock_timeout
        self.statements = ddl.fence_table(
            table,
            self.resource,
            schema=schema,
            operations=self.operations,
            mode=self.mode,
            lock_timeout=lock_timeout,
        )

    @classmethod
    def fence_table(
        cls,
        operations: Operations,
        /,
        table: str,
        *,
        resource: str,
        schema: str | None = None,
        mode: str = "enforce",
        lock_timeout: float = _LOCK_TIMEOUT,
        **guard: Iterable[str],
    ) -> None:
        """Guard a table: from now on it refuses writes that present no current lease.

        Args:
            operations: The running Alembic operations.
            table: Name of the table.
            resource: Its resource template, such as ``"account:{id}"``; fields name columns of
                the database.
            schema: Schema of the table; default: found by the search_path.
            mode: ``"enforce"``, or ``"observe"``: writes without a current lease pass, and each
                is reported.
            lock_timeout: Longest wait for transactions that have written the table, in seconds.
            **guard: ``operations=``, what to guard, of ``"insert"``, ``"update"`` and
                ``"delete"``; default: all three. TRUNCATE goes with ``"delete"``.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument makes no sense, or the template does not fit the table's
                columns.
            GuardNotInstalledError: The database has no schema ``fencing``.
            FencingUsageError: The table is fenced already, or the schema is of another version.
            TableBusyError: It was not free in time; nothing has changed.
        """
        operations.invoke(
            cls(
                table,
                resource=resource,
                schema=schema,
                mode=mode,
                lock_timeout=lock_timeout,
                **guard,
            )
        )

    def call(self) -> Call:
        """How a migration says this."""
        return (
            "fence_table",
            (str(self.table),),
            {"resource": self.resource} | _options(self, ("operations", "mode")),
        )

    def reverse(self) -> UnfenceTableOp:
        """The operation that undoes this one."""
        return UnfenceTableOp(
            self.table,
            schema=self.schema,
            resource=self.resource,
            operations=self.operations,
            mode=self.mode,
            lock_timeout=self.lock_timeout,
        )

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return (
            "fence_table",
            self.schema,
            self.table,
            self.resource,
            self.operations,
            self.mode,
        )


@Operations.register_operation("alter_fence")
class AlterFenceOp(FencingOperation):
    """Changes the guard of a table.

    Args:
        table: Name of the table.
        resource: Its new resource template; ``None`` keeps the one it has.
        operations: What to guard from now on; ``None`` keeps what is guarded.
        mode: ``"enforce"`` or ``"observe"``; ``None`` keeps the one it has.
        existing_resource: The template so far; needed only to reverse a change of it.
        existing_operations: What was guarded so far; needed only to reverse a change of it.
        existing_mode: The mode so far; needed only to reverse a change of it.
        schema: Schema of the table; default: found by the search_path.
        lock_timeout: Longest wait for transactions that have written the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: An argument makes no sense, or none of them changes anything.
    """

    def __init__(
        self,
        table: str,
        *,
        resource: str | None = None,
        operations: Iterable[str] | None = None,
        mode: str | None = None,
        existing_resource: str | None = None,
        existing_operations: Iterable[str] | None = None,
        existing_mode: str | None = None,
        schema: str | None = None,
        lock_timeout: float = _LOCK_TIMEOUT,
    ) -> None:
        if resource is None and operations is None and mode is None:
            raise ValueError(
                f"alter_fence({table!r}) changes nothing: pass resource=, operations= or mode="
            )
        self.table = table
        self.schema = schema
        self.resource = _template(resource)
        self.operations = None if operations is None else ddl.check_operations(operations)
        self.mode = None if mode is None else ddl.check_mode(mode)
        self.existing_resource = _template(existing_resource)
        self.existing_operations = (
            None if existing_operations is None else ddl.check_operations(existing_operations)
        )
        self.existing_mode = None if existing_mode is None else ddl.check_mode(existing_mode)
        self.lock_timeout = lock_timeout
        self.statements = ddl.alter_fence(
            table,
            schema=schema,
            resource=self.resource,
            operations=self.operations,
            mode=self.mode,
            lock_timeout=lock_timeout,
        )

    @classmethod
    def alter_fence(
        cls,
        operations: Operations,
        /,
        table: str,
        *,
        resource: str | None = None,
        mode: str | None = None,
        existing_resource: str | None = None,
        existing_operations: Iterable[str] | None = None,
        existing_mode: str | None = None,
        schema: str | None = None,
        lock_timeout: float = _LOCK_TIMEOUT,
        **guard: Iterable[str],
    ) -> None:
        """Change the guard of a table, without a moment in which the table has none.

        Args:
            operations: The running Alembic operations.
            table: Name of the table.
            resource: Its new resource template; ``None`` keeps the one it has.
            mode: ``"enforce"`` or ``"observe"``; ``None`` keeps the one it has.
            existing_resource: The template so far; needed only to reverse a change of it.
            existing_operations: What was guarded so far; needed only to reverse a change of it.
            existing_mode: The mode so far; needed only to reverse a change of it.
            schema: Schema of the table; default: found by the search_path.
            lock_timeout: Longest wait for transactions that have written the table, in seconds.
            **guard: ``operations=``, what to guard from now on; default: what is guarded.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument makes no sense, none changes anything, or the template does
                not fit the table's columns.
            GuardNotInstalledError: The database has no schema ``fencing``.
            FencingUsageError: The table is not fenced, or the schema is of another version.
            TableBusyError: It was not free in time; nothing has changed.
        """
        operations.invoke(
            cls(
                table,
                resource=resource,
                mode=mode,
                existing_resource=existing_resource,
                existing_operations=existing_operations,
                existing_mode=existing_mode,
                schema=schema,
                lock_timeout=lock_timeout,
                **guard,
            )
        )

    def call(self) -> Call:
        """How a migration says this."""
        facts = ("resource", "operations", "mode")
        given = (*facts, *(f"existing_{fact}" for fact in facts))
        changes = {name: value for name in given if (value := getattr(self, name)) is not None}
        return "alter_fence", (str(self.table),), changes | _options(self, ())

    def reverse(self) -> AlterFenceOp:
        """The operation that undoes this one.

        Raises:
            ValueError: It does not know what there was before.
        """
        for fact in ("resource", "operations", "mode"):
            if getattr(self, fact) is not None and getattr(self, f"existing_{fact}") is None:
                raise ValueError(
                    f"alter_fence({self.table!r}, {fact}=...) can be reversed only if it is told "
                    f"what there was before: pass existing_{fact}="
                )
        return AlterFenceOp(
            self.table,
            resource=None if self.resource is None else self.existing_resource,
            operations=None if self.operations is None else self.existing_operations,
            mode=None if self.mode is None else self.existing_mode,
            existing_resource=self.resource,
            existing_operations=self.operations,
            existing_mode=self.mode,
            schema=self.schema,
            lock_timeout=self.lock_timeout,
        )

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        facts = ("resource", "operations", "mode")
        changes = {
            fact: (getattr(self, f"existing_{fact}"), getattr(self, fact))
            for fact in facts
            if getattr(self, fact) is not None
        }
        return ("alter_fence", self.schema, self.table, changes)


@Operations.register_operation("unfence_table")
class UnfenceTableOp(FencingOperation):
    """Removes the guard of a table.

    Args:
        table: Name of the table.
        schema: Schema of the table; default: found by the search_path.
        resource: The template it was fenced with; needed only to reverse this operation.
        operations: The operations it was fenced for; needed only to reverse this operation.
        mode: The mode it was fenced in; needed only to reverse this operation.
        lock_timeout: Longest wait for transactions that have written the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The template, the operations, the mode or the time-out make no sense.
    """

    def __init__(
        self,
        table: str,
        *,
        schema: str | None = None,
        resource: str | None = None,
        operations: Iterable[str] = ddl.OPERATIONS,
        mode: str = "enforce",
        lock_timeout: float = _LOCK_TIMEOUT,
    ) -> None:
        self.table = table
        self.schema = schema
        self.resource = _template(resource)
        self.operations = ddl.check_operations(operations)
        self.mode = ddl.check_mode(mode)
        self.lock_timeout = lock_timeout
        self.statements = ddl.unfence_table(table, schema=schema, lock_timeout=lock_timeout)

    @classmethod
    def unfence_table(
        cls,
        operations: Operations,
        /,
        table: str,
        *,
        schema: str | None = None,
        resource: str | None = None,
        mode: str = "enforce",
        lock_timeout: float = _LOCK_TIMEOUT,
        **guard: Iterable[str],
    ) -> None:
        """Remove the guard of a table.

        Args:
            operations: The running Alembic operations.
            table: Name of the table.
            schema: Schema of the table; default: found by the search_path.
            resource: The template it was fenced with; needed only to reverse this operation.
            mode: The mode it was fenced in; needed only to reverse this operation.
            lock_timeout: Longest wait for transactions that have written the table, in seconds.
            **guard: ``operations=``, what it was fenced for; needed only to reverse this
                operation.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument makes no sense.
            GuardNotInstalledError: The database has no schema ``fencing``.
            FencingUsageError: The table is not fenced, or the schema is of another version.
            TableBusyError: It was not free in time; nothing has changed.
        """
        operations.invoke(
            cls(
                table,
                schema=schema,
                resource=resource,
                mode=mode,
                lock_timeout=lock_timeout,
                **guard,
            )
        )

    def call(self) -> Call:
        """How a migration says this."""
        known = {} if self.resource is None else {"resource": self.resource}
        return (
            "unfence_table",
            (str(self.table),),
            known | _options(self, ("operations", "mode")),
        )

    def reverse(self) -> FenceTableOp:
        """The operation that undoes this one.

        Raises:
            ValueError: It does not know the template.
        """
        if self.resource is None:
            raise ValueError(
                f"unfence_table({self.table!r}) can be reversed only if it is told the template: "
                "pass resource="
            )
        return FenceTableOp(
            self.table,
            resource=self.resource,
            schema=self.schema,
            operations=self.operations,
            mode=self.mode,
            lock_timeout=self.lock_timeout,
        )

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("unfence_table", self.schema, self.table)


@Operations.register_operation("fenced_maintenance")
class FencedMaintenanceOp(FencingOperation):
    """Lets the transaction of this migration write a guarded table.

    Args:
        table: Name of the table.
        schema: Schema of the table; default: found by the search_path.
        lock_timeout: Longest wait for transactions that have written the table, in seconds.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The time-out makes no sense.
    """

    def __init__(
        self, table: str, *, schema: str | None = None, lock_timeout: float = _LOCK_TIMEOUT
    ) -> None:
        self.table = table
        self.schema = schema
        self.lock_timeout = lock_timeout
        self.statements = ddl.maintain(table, schema=schema, lock_timeout=lock_timeout)

    @classmethod
    def fenced_maintenance(
        cls,
        operations: Operations,
        /,
        table: str,
        *,
        schema: str | None = None,
        lock_timeout: float = _LOCK_TIMEOUT,
    ) -> None:
        """Let this transaction write all rows of a guarded table, until it ends.

        The table is locked against all other writers. Each fence whose rows are written is
        raised, so no lease that is held meanwhile is any good afterwards. It needs the rights of
        the owner of schema ``fencing``.

        Args:
            operations: The running Alembic operations.
            table: Name of the table.
            schema: Schema of the table; default: found by the search_path.
            lock_timeout: Longest wait for transactions that have written the table, in seconds.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: The time-out makes no sense.
            GuardNotInstalledError: The database has no schema ``fencing``.
            FencingUsageError: The table is not fenced, the schema is of another version, or this
                is no transaction (``autocommit_block()``, or an AUTOCOMMIT connection).
            TableBusyError: It was not free in time; nothing has changed.
        """
        operations.invoke(cls(table, schema=schema, lock_timeout=lock_timeout))

    def call(self) -> Call:
        """How a migration says this."""
        return "fenced_maintenance", (str(self.table),), _options(self, ())

    def reverse(self) -> FencedMaintenanceOp:
        """This operation itself: what undoes the writes of a migration writes the table, too."""
        return self

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("fenced_maintenance", self.schema, self.table)


_DEFAULTS = {
    "operations": ddl.OPERATIONS,
    "mode": "enforce",
    "schema": None,
    "lock_timeout": _LOCK_TIMEOUT,
}


def _options(operation: FencingOperation, facts: tuple[str, ...]) -> dict[str, Any]:
    """What of these, and of schema and time-out, is not the default."""
    options = {name: getattr(operation, name) for name in (*facts, "schema", "lock_timeout")}
    return {
        name: str(value) if isinstance(value, str) else value  # no quoted_name
        for name, value in options.items()
        if value != _DEFAULTS[name]
    }


def _template(resource: str | None) -> str | None:
    return None if resource is None else Template.parse(resource).source


@Operations.implementation_for(FenceTableOp)
@Operations.implementation_for(AlterFenceOp)
@Operations.implementation_for(UnfenceTableOp)
def _change(
    operations: Operations, operation: FenceTableOp | AlterFenceOp | UnfenceTableOp
) -> None:
    require_installed(operations, guards=True)
    execute(operations, operation.statements)


@Operations.implementation_for(FencedMaintenanceOp)
def _maintain(operations: Operations, operation: FencedMaintenanceOp) -> None:
    require_installed(operations, guards=True)
    require_transaction(operations, "fenced_maintenance")
    execute(operations, operation.statements)

"""The four operations: what a migration says, and how it is carried out.

An operation checks its arguments when it is created, so that bad input never reaches a database
and fails in offline mode as well. It renders its statements through :mod:`fencing.schema.ddl`;
:mod:`fencing.migration.execution` sends or prints them as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic.operations import MigrateOperation, Operations

from fencing.migration.execution import execute, require_absent, require_installed
from fencing.schema import ddl
from fencing.schema.template import Template

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["FenceTableOp", "InstallFencingOp", "UnfenceTableOp", "UninstallFencingOp"]


@Operations.register_operation("install_fencing")
class InstallFencingOp(MigrateOperation):
    """Creates schema ``fencing``."""

    @classmethod
    def install_fencing(cls, operations: Operations) -> None:
        """Create schema ``fencing``, once per database.

        Raises:
            FencingUsageError: The database has a schema of that name already.
        """
        operations.invoke(cls())

    def reverse(self) -> UninstallFencingOp:
        """The operation that undoes this one."""
        return UninstallFencingOp()

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("install_fencing",)


@Operations.register_operation("uninstall_fencing")
class UninstallFencingOp(MigrateOperation):
    """Drops schema ``fencing``."""

    @classmethod
    def uninstall_fencing(cls, operations: Operations) -> None:
        """Drop schema ``fencing``, and with it every high-water mark.

        Raises:
            FencingUsageError: A table is still fenced.
            GuardNotInstalledError: There is no such schema.
        """
        operations.invoke(cls())

    def reverse(self) -> InstallFencingOp:
        """The operation that undoes this one; the high-water marks do not come back."""
        return InstallFencingOp()

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("uninstall_fencing",)


# Alembic passes itself as a parameter that has to be called `operations`, which is also the name
# of an argument of ours. It is therefore positional-only below, and our argument goes through
# `**guard` to the constructor, which knows it by name.


@Operations.register_operation("fence_table")
class FenceTableOp(MigrateOperation):
    """Guards a table.

    Args:
        table: Name of the table.
        resource: Its resource template, such as ``"account:{id}"``; fields name columns of the
            database.
        schema: Schema of the table; default: found by the search_path.
        operations: What to guard, of ``"insert"``, ``"update"`` and ``"delete"``.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The template or the operations make no sense.
    """

    def __init__(
        self,
        table: str,
        *,
        resource: str,
        schema: str | None = None,
        operations: Iterable[str] = ddl.OPERATIONS,
    ) -> None:
        self.table = table
        self.schema = schema
        self.resource = Template.parse(resource).source
        self.operations = ddl.check_operations(operations)
        self.statements = ddl.fence_table(
            table, self.resource, schema=schema, operations=self.operations
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
        **guard: Iterable[str],
    ) -> None:
        """Guard a table: from now on it refuses writes that present no current lease.

        Args:
            operations: The running Alembic operations.
            table: Name of the table.
            resource: Its resource template, such as ``"account:{id}"``; fields name columns of
                the database.
            schema: Schema of the table; default: found by the search_path.
            **guard: ``operations=``, what to guard, of ``"insert"``, ``"update"`` and
                ``"delete"``; default: all three. TRUNCATE goes with ``"delete"``.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: The template or the operations make no sense, or the template does not
                fit the table's columns.
            GuardNotInstalledError: The database has no schema ``fencing``.
            FencingUsageError: The table is fenced already.
        """
        operations.invoke(cls(table, resource=resource, schema=schema, **guard))

    def reverse(self) -> UnfenceTableOp:
        """The operation that undoes this one."""
        return UnfenceTableOp(
            self.table, schema=self.schema, resource=self.resource, operations=self.operations
        )

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("fence_table", self.schema, self.table, self.resource, self.operations)


@Operations.register_operation("unfence_table")
class UnfenceTableOp(MigrateOperation):
    """Removes the guard of a table.

    Args:
        table: Name of the table.
        schema: Schema of the table; default: found by the search_path.
        resource: The template it was fenced with; needed only to reverse this operation.
        operations: The operations it was fenced for; needed only to reverse this operation.

    Raises:
        TypeError: An argument is of the wrong type.
        ValueError: The template or the operations make no sense.
    """

    def __init__(
        self,
        table: str,
        *,
        schema: str | None = None,
        resource: str | None = None,
        operations: Iterable[str] = ddl.OPERATIONS,
    ) -> None:
        self.table = table
        self.schema = schema
        self.resource = None if resource is None else Template.parse(resource).source
        self.operations = ddl.check_operations(operations)
        self.statements = ddl.unfence_table(table, schema=schema)

    @classmethod
    def unfence_table(
        cls,
        operations: Operations,
        /,
        table: str,
        *,
        schema: str | None = None,
        resource: str | None = None,
        **guard: Iterable[str],
    ) -> None:
        """Remove the guard of a table.

        Args:
            operations: The running Alembic operations.
            table: Name of the table.
            schema: Schema of the table; default: found by the search_path.
            resource: The template it was fenced with; needed only to reverse this operation.
            **guard: ``operations=``, what it was fenced for; needed only to reverse this
                operation.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: The template or the operations make no sense.
            FencingUsageError: The table is not fenced.
            GuardNotInstalledError: The database has no schema ``fencing``.
        """
        operations.invoke(cls(table, schema=schema, resource=resource, **guard))

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
            self.table, resource=self.resource, schema=self.schema, operations=self.operations
        )

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("unfence_table", self.schema, self.table)


@Operations.implementation_for(InstallFencingOp)
def _install_fencing(operations: Operations, _: InstallFencingOp) -> None:
    require_absent(operations)
    execute(operations, ddl.install())


@Operations.implementation_for(UninstallFencingOp)
def _uninstall_fencing(operations: Operations, _: UninstallFencingOp) -> None:
    require_installed(operations)
    execute(operations, ddl.uninstall())


@Operations.implementation_for(FenceTableOp)
@Operations.implementation_for(UnfenceTableOp)
def _change_guard(operations: Operations, operation: FenceTableOp | UnfenceTableOp) -> None:
    require_installed(operations)
    execute(operations, operation.statements)

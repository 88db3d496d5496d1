"""The operations on schema ``fencing`` itself, as a migration says them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic.operations import Operations

from fencing.migration.base import FencingOperation
from fencing.migration.execution import (
    execute,
    require_absent,
    require_installed,
    require_upgradable,
)
from fencing.schema import ddl

if TYPE_CHECKING:
    from fencing.migration.base import Call

__all__ = ["InstallFencingOp", "UninstallFencingOp", "UpgradeFencingOp"]


@Operations.register_operation("install_fencing")
class InstallFencingOp(FencingOperation):
    """Creates schema ``fencing``."""

    @classmethod
    def install_fencing(cls, operations: Operations) -> None:
        """Create schema ``fencing``, once per database.

        Raises:
            FencingUsageError: The database has a schema of that name already.
        """
        operations.invoke(cls())

    def call(self) -> Call:
        """How a migration says this."""
        return "install_fencing", (), {}

    def reverse(self) -> UninstallFencingOp:
        """The operation that undoes this one."""
        return UninstallFencingOp()

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("install_fencing",)


@Operations.register_operation("uninstall_fencing")
class UninstallFencingOp(FencingOperation):
    """Drops schema ``fencing``."""

    @classmethod
    def uninstall_fencing(cls, operations: Operations) -> None:
        """Drop schema ``fencing``, and with it every high-water mark.

        Raises:
            FencingUsageError: A table is still fenced.
            GuardNotInstalledError: There is no such schema.
        """
        operations.invoke(cls())

    def call(self) -> Call:
        """How a migration says this."""
        return "uninstall_fencing", (), {}

    def reverse(self) -> InstallFencingOp:
        """The operation that undoes this one; the high-water marks do not come back."""
        return InstallFencingOp()

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("uninstall_fencing",)


@Operations.register_operation("upgrade_fencing")
class UpgradeFencingOp(FencingOperation):
    """Brings schema ``fencing`` to the version of this package."""

    @classmethod
    def upgrade_fencing(cls, operations: Operations) -> None:
        """Bring schema ``fencing`` and every guard to the version of this package.

        Nothing is unguarded meanwhile. Where the schema is at this version, nothing happens, so
        this may be written into a migration after each upgrade of the package.

        Raises:
            GuardNotInstalledError: There is no such schema.
            FencingUsageError: It is of a newer version than this package knows.
        """
        operations.invoke(cls())

    def call(self) -> Call:
        """How a migration says this."""
        return "upgrade_fencing", (), {}

    def reverse(self) -> UpgradeFencingOp:
        """This operation itself, which finds nothing to do.

        A newer schema serves older versions of this package, and an older one would not know what
        has been written meanwhile.
        """
        return self

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """This operation as Alembic's autogenerate reports a difference."""
        return ("upgrade_fencing",)


@Operations.implementation_for(InstallFencingOp)
def _install(operations: Operations, _: InstallFencingOp) -> None:
    require_absent(operations)
    execute(operations, ddl.install())


@Operations.implementation_for(UninstallFencingOp)
def _uninstall(operations: Operations, _: UninstallFencingOp) -> None:
    require_installed(operations)
    execute(operations, ddl.uninstall())


@Operations.implementation_for(UpgradeFencingOp)
def _upgrade(operations: Operations, _: UpgradeFencingOp) -> None:
    if require_upgradable(operations):
        execute(operations, ddl.upgrade())

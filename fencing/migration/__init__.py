"""Alembic operations that install schema ``fencing`` and guard tables, and the way without them.

Importing this module is enough for a migration to write::

    op.install_fencing()                                  # once per database
    op.fence_table("accounts", resource="account:{id}")   # refuses unfenced writes from now on
    op.alter_fence("accounts", mode="observe")            # reports them, and lets them pass
    op.fenced_maintenance("accounts")                     # this transaction may write all of it

    op.unfence_table("accounts")                          # the reverses
    op.uninstall_fencing()
    op.upgrade_fencing()                                  # after an upgrade of this package

and for ``alembic revision --autogenerate`` to write them, from what ``fenced_by`` declares. From
Alembic 1.18 on not even the import is needed: the package is a plugin.

The schema can be installed in three ways; a database takes one of them. :func:`install` (and
``fencing install`` on the command line) runs the migrations that ship with this package and
records the revision in a table of its own; what came another way it only brings forward. An
application with an Alembic environment can list :func:`versions_path` among its
``version_locations``, and our branch is upgraded with its own revisions. Or one of its own
migrations calls ``op.install_fencing()``.

Without an Alembic context, :func:`fence_table`, :func:`alter_fence`, :func:`unfence_table`,
:func:`maintain` and :func:`upgrade` take a connection.

Importing it costs what ``import alembic`` costs: no engine.
"""

from __future__ import annotations

from fencing.migration.environment import (
    install,
    install_script,
    place,
    uninstall,
    versions_path,
)
from fencing.migration.filters import include_name, include_object, including
from fencing.migration.guards import (
    AlterFenceOp,
    FencedMaintenanceOp,
    FenceTableOp,
    UnfenceTableOp,
)
from fencing.migration.operations import InstallFencingOp, UninstallFencingOp, UpgradeFencingOp
from fencing.migration.plugin import ensure as _ensure_plugin
from fencing.tables.changing import alter_fence, fence_table, maintain, unfence_table, upgrade
from fencing.tables.refusals import describe

__all__ = [
    "AlterFenceOp",
    "FenceTableOp",
    "FencedMaintenanceOp",
    "InstallFencingOp",
    "UnfenceTableOp",
    "UninstallFencingOp",
    "UpgradeFencingOp",
    "alter_fence",
    "describe",
    "fence_table",
    "include_name",
    "include_object",
    "including",
    "install",
    "install_script",
    "maintain",
    "place",
    "unfence_table",
    "uninstall",
    "upgrade",
    "versions_path",
]

_ensure_plugin()

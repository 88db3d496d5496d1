"""Alembic operations that install schema ``fencing`` and guard tables, and the way without them.

Importing this module is enough for a migration to write::

    op.install_fencing()                                  # once per database
    op.fence_table("accounts", resource="account:{id}")   # refuses unfenced writes from now on

    op.unfence_table("accounts")                          # the reverses
    op.uninstall_fencing()

The schema can be installed in three ways; a database takes one of them. :func:`install` (and
``fencing install`` on the command line) runs the migrations that ship with this package and
records the revision in a table of its own. An application with an Alembic environment can list
:func:`versions_path` among its ``version_locations``, and our branch is upgraded with its own
revisions. Or one of its own migrations calls ``op.install_fencing()``.

Importing it costs what ``import alembic`` costs: no engine, no autogenerate.
"""

from __future__ import annotations

from fencing.migration.environment import (
    install,
    install_script,
    place,
    uninstall,
    versions_path,
)
from fencing.migration.operations import (
    FenceTableOp,
    InstallFencingOp,
    UnfenceTableOp,
    UninstallFencingOp,
)
from fencing.migration.refusals import describe

__all__ = [
    "FenceTableOp",
    "InstallFencingOp",
    "UnfenceTableOp",
    "UninstallFencingOp",
    "describe",
    "install",
    "install_script",
    "place",
    "uninstall",
    "versions_path",
]

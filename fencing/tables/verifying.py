"""Verifies a database over a connection of SQLAlchemy's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.verification import perform, verification

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Engine

    from fencing.verification import Declared, Verification

__all__ = ["looking", "verify"]


def verify(connection: Connection, declared: Sequence[Declared] | None = None) -> Verification:
    """Verify the guards of a database.

    Args:
        connection: A connection with a transaction, whose search_path is changed until it ends;
            see :func:`looking`.
        declared: The tables that should be guarded; ``None``: nobody knows.

    Raises:
        FencingUsageError: The connection is in AUTOCOMMIT.
    """

    def fetch(query: str) -> list[object]:
        # Nothing is a parameter, so no driver may look for one.
        rows = connection.exec_driver_sql(query, execution_options={"no_parameters": True})
        return list(rows.scalars())

    return perform(verification(declared), fetch)


def looking(engine: Engine) -> Engine:
    """The engine with options for :func:`verify`: one snapshot, and nothing can be written."""
    return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

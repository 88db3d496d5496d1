"""Verifies the databases of a guard, each on a connection apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.util import greenlet_spawn

from fencing.hooks.admission import INTERNAL
from fencing.tables.verifying import looking, verify
from fencing.verification import declared_in, together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.hooks.database import Database
    from fencing.verification import Declared, Verification

__all__ = ["averify_databases", "verify_databases"]


def verify_databases(databases: Sequence[Database], metadata: object = None) -> list[Verification]:
    """Verify them one after the other.

    Args:
        databases: The databases of a guard.
        metadata: A ``MetaData``, or a class that has one; ``None``: nothing is declared.

    Raises:
        TypeError: The metadata are neither.
    """
    declared = None if metadata is None else declared_in(metadata)
    return together([_verify(database, declared) for database in databases])


async def averify_databases(
    databases: Sequence[Database], metadata: object = None
) -> list[Verification]:
    """:func:`verify_databases` for async engines."""
    return await greenlet_spawn(verify_databases, databases, metadata)


def _verify(database: Database, declared: Sequence[Declared] | None) -> Verification:
    source = database.admissions.engine
    # One connection, which is in nobody's way: admissions count theirs.
    apart = Engine(source.pool.recreate(), source.dialect, source.url)
    try:
        with looking(apart).execution_options(**{INTERNAL: True}).connect() as connection:
            return verify(connection, declared)
    finally:
        apart.dispose()

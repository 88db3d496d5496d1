"""Verifies the database of a guard, on a connection apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Engine

from fencing.guarding.verifying import looking, verify
from fencing.hooks.admission import INTERNAL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.hooks.database import Database
    from fencing.verification import Declared, Verification

__all__ = ["verify_database"]


def verify_database(database: Database, declared: Sequence[Declared] | None = None) -> Verification:
    """Verify a guard's database; within the greenlet of an async engine as well.

    Args:
        database: The database.
        declared: The tables that should be guarded; ``None``: nobody knows.
    """
    source = database.admissions.engine
    # One connection, which is in nobody's way: admissions count theirs.
    apart = Engine(source.pool.recreate(), source.dialect, source.url)
    try:
        with looking(apart).execution_options(**{INTERNAL: True}).connect() as connection:
            return verify(connection, declared)
    finally:
        apart.dispose()

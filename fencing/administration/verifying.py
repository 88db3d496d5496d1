"""Verifies a database by its URL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.administration.connecting import engine_of
from fencing.tables.verifying import looking, verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.verification import Declared, Verification

__all__ = ["verify_url"]


def verify_url(url: str, declared: Sequence[Declared] | None = None) -> Verification:
    """Verify the guards of a database.

    Args:
        url: The database; a driver need not be named.
        declared: The tables that should be guarded; ``None``: nobody knows.

    Raises:
        ValueError: The URL cannot be read, or is not one of PostgreSQL.
        sqlalchemy.exc.DBAPIError: The database cannot be reached.
    """
    with engine_of(url) as engine, looking(engine).connect() as connection:
        return verify(connection, declared)

"""Connects to a database by its URL, for as long as a command takes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fencing.migration.connecting import CONNECT_SECONDS, engine_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

__all__ = ["engine_of"]


@contextmanager
def engine_of(url: str, *, within: float = CONNECT_SECONDS) -> Iterator[Engine]:
    """An engine without a pool, at READ COMMITTED whatever the role's default is.

    Args:
        url: Names any driver or none; psycopg is used.
        within: How long connecting may take, in seconds; a ``connect_timeout`` of libpq's goes
            before.

    Raises:
        ValueError: It cannot be read, or is not one of PostgreSQL.
    """
    engine = engine_at(url, within=within)
    try:
        yield engine.execution_options(isolation_level="READ COMMITTED")
    finally:
        engine.dispose()

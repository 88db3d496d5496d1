"""Connects to a database by its URL, for as long as a command takes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fencing.migration.connecting import read_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

__all__ = ["engine_of"]


@contextmanager
def engine_of(url: str) -> Iterator[Engine]:
    """An engine without a pool, at READ COMMITTED whatever the role's default is.

    Args:
        url: Names any driver or none; psycopg is used.

    Raises:
        ValueError: It cannot be read, or is not one of PostgreSQL.
    """
    from sqlalchemy import NullPool, create_engine  # noqa: PLC0415 -- `fencing --help` does without

    engine = create_engine(read_url(url), poolclass=NullPool, hide_parameters=True)
    try:
        yield engine.execution_options(isolation_level="READ COMMITTED")
    finally:
        engine.dispose()

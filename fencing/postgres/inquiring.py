"""Who is asked what has become of a connection's transaction: new ones to the same database."""

from __future__ import annotations

from typing import Any

import psycopg

from fencing.postgres.statements import async_cursor, cursor, named

__all__ = ["NewConnections"]

_READ_COMMITTED = psycopg.IsolationLevel.READ_COMMITTED


class NewConnections:
    """See :class:`fencing.core.outcome.Asked`.

    Args:
        parameters: How to connect, in autocommit mode.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters

    def ask(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        """One row, or ``None``."""
        try:
            with psycopg.connect(**self._parameters) as connection:
                connection.isolation_level = _READ_COMMITTED
                with connection.transaction(), cursor(connection) as asked:
                    return asked.execute(named(statement), values).fetchone()
        except psycopg.Error:
            return None

    async def aask(self, statement: str, values: dict[str, object]) -> tuple[Any, ...] | None:
        """:meth:`ask` of an asynchronous connection."""
        try:
            async with await psycopg.AsyncConnection.connect(**self._parameters) as connection:
                await connection.set_isolation_level(_READ_COMMITTED)
                async with connection.transaction(), async_cursor(connection) as asked:
                    await asked.execute(named(statement), values)
                    return await asked.fetchone()
        except psycopg.Error:
            return None

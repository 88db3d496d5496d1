"""Verifies the guards of a database over a connection of psycopg's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import psycopg

from fencing.verification import declared_in, perform, perform_async, verification

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from fencing.verification import Verification
    from fencing.verification.facts import Queries

__all__ = ["verify"]


@overload
def verify(connection: psycopg.Connection[Any], metadata: object = None) -> Verification: ...
@overload
def verify(
    connection: psycopg.AsyncConnection[Any], metadata: object = None
) -> Coroutine[Any, Any, Verification]: ...
def verify(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any], metadata: object = None
) -> Verification | Coroutine[Any, Any, Verification]:
    """Verify the guards of a database, as ``fencing verify`` does.

    Reads catalogs only; what an application's role may see is enough.

    Args:
        connection: Of psycopg; an asynchronous one makes this a coroutine. In a transaction it
            leaves everything as it was.
        metadata: A ``MetaData`` of SQLAlchemy's, or a class that has one: what ``fenced_by``
            declares in it is compared with what is there.

    Raises:
        TypeError: An argument is of the wrong type.
    """
    queries = verification(None if metadata is None else declared_in(metadata))
    if isinstance(connection, psycopg.AsyncConnection):
        return _verify_async(connection, queries)
    if not isinstance(connection, psycopg.Connection):
        raise TypeError(f"verify() takes a connection of psycopg, not {type(connection).__name__}")

    def fetch(query: str) -> list[Any]:
        # Rows are tuples here, whatever the connection makes of them.
        with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            return [row[0] for row in cursor.execute(query.encode())]

    with connection.transaction(force_rollback=True):
        return perform(queries, fetch)


async def _verify_async(
    connection: psycopg.AsyncConnection[Any], queries: Queries[Verification]
) -> Verification:
    async def fetch(query: str) -> list[Any]:
        async with connection.cursor(row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(query.encode())
            return [row[0] for row in await cursor.fetchall()]

    async with connection.transaction(force_rollback=True):
        return await perform_async(queries, fetch)

"""Entry: the first statement of a transaction under leases.

With psycopg, BEGIN goes in one message with it (:mod:`fencing.core.message`). Where that cannot be
done, entry is a statement like any other, and BEGIN comes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.util import await_only

from fencing.core.message import begin_and_enter, goes_in_one_message
from fencing.schema.names import ENTER

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection

__all__ = ["enter"]

_STATEMENT = text(ENTER)


def enter(
    connection: Connection,
    driver: Any,  # noqa: ANN401 - psycopg's or asyncpg's
    entry: dict[str, object],
    options: dict[str, Any],
) -> str:
    """Present leases in the transaction that begins.

    Args:
        connection: Where it begins; no statement of it has been sent.
        driver: Its driver's connection.
        entry: The parameters of ``fencing.enter``.
        options: Execution options of our own statements.

    Returns:
        What tells the transaction from every other.
    """
    dbapi: Any = connection.dialect.loaded_dbapi
    if not goes_in_one_message(driver, dbapi):
        stamp: str = connection.execute(_STATEMENT, entry, execution_options=options).scalar_one()
        return stamp
    try:
        return _wait(driver, begin_and_enter(driver, dbapi, entry))
    except dbapi.Error as error:
        # As SQLAlchemy does with errors of its own statements: it wraps, rolls back, disconnects.
        connection._handle_dbapi_exception(error, ENTER, None, None, None)  # noqa: SLF001 - no public way does as much
        raise


def _wait(driver: Any, generator: Generator[int, int, str]) -> str:  # noqa: ANN401 - psycopg's
    """Have psycopg run the generator, which stays interruptible so."""
    if hasattr(driver, "__aenter__"):
        stamp: str = await_only(_wait_async(driver, generator))
    else:
        with driver.lock:
            stamp = driver.wait(generator)
    return stamp


async def _wait_async(driver: Any, generator: Generator[int, int, str]) -> Any:  # noqa: ANN401 - psycopg's
    async with driver.lock:
        return await driver.wait(generator)

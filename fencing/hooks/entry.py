"""Entry: the first statement of a transaction under leases.

With psycopg, BEGIN goes in one message with it (:mod:`fencing.core.message`), and the answer is
left for later (:mod:`fencing.hooks.ahead`). Where that cannot be done, entry is a statement like
any other, and BEGIN comes before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.util import await_only

from fencing.core.message import begin_and_enter, goes_in_one_message, sent
from fencing.hooks.ahead import EntryAhead, as_sqlalchemy_raises_it, may_go_ahead
from fencing.schema.names import ENTER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from sqlalchemy import Connection

    from fencing.errors import FencingError
    from fencing.hooks.transaction import Presentation

__all__ = ["enter"]

_STATEMENT = text(ENTER)


def enter(
    connection: Connection,
    driver: Any,  # noqa: ANN401 - psycopg's or asyncpg's
    presentation: Presentation,
    options: dict[str, Any],
    typed: Callable[[Exception], FencingError | None] | None,
) -> None:
    """Present leases in the transaction that begins.

    Args:
        connection: Where it begins; no statement of it has been sent.
        driver: Its driver's connection.
        presentation: The leases; told the transaction's stamp, or that its answer is to come.
        options: Execution options of our own statements.
        typed: Makes an error of ours of one of the driver's; ``None``: the answer is waited for at
            once.
    """
    dbapi: Any = connection.dialect.loaded_dbapi
    entry = presentation.entry
    if not goes_in_one_message(driver, dbapi):
        presentation.stamp = connection.execute(
            _STATEMENT, entry, execution_options=options
        ).scalar_one()
        return
    entering = begin_and_enter(driver, dbapi, entry)
    try:
        if typed is not None and may_go_ahead(driver, dbapi):
            with driver.lock:
                presentation.ahead = EntryAhead(driver, presentation, dbapi, sent(entering), typed)
        else:
            presentation.stamp = _wait(driver, entering)
    except dbapi.Error as error:
        as_sqlalchemy_raises_it(connection, error)
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

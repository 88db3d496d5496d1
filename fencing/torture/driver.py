"""What is seen of the driver psycopg, below SQLAlchemy and the hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.waiting import Wait
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from sqlalchemy import Engine
    from sqlalchemy.pool import ConnectionPoolEntry

__all__ = ["is_conflict", "listen_to_connections", "listen_to_waits"]

_CONFLICTS = {"40001", "40P01"}


def is_conflict(error: BaseException) -> bool:
    """Whether an error is a conflict of the transaction's own, which may be tried again."""
    original = error.orig if isinstance(error, DBAPIError) else error
    code = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    return code in _CONFLICTS


def listen_to_connections(engine: Engine, waits_for_answer: Callable[[], None]) -> None:
    """Call when a connection of an engine has sent something and begins to wait for the answer."""

    @event.listens_for(engine, "connect")
    def listen(_dbapi: object, record: ConnectionPoolEntry) -> None:
        driver = record.driver_connection
        if isinstance(driver, psycopg.Connection | psycopg.AsyncConnection):
            listen_to_waits(driver, waits_for_answer)


def listen_to_waits(driver: Any, waits_for_answer: Callable[[], None]) -> None:  # noqa: ANN401 - either
    """The same for one connection of psycopg's."""
    wait = driver.wait

    def watched_wait(generator: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - psycopg's
        return wait(_watched(generator, waits_for_answer), *arguments, **options)

    driver.wait = watched_wait


def _watched(
    generator: Generator[Any, Any, Any], waits_for_answer: Callable[[], None]
) -> Generator[Any, Any, Any]:
    told = False
    try:
        state = next(generator)
        while True:
            # It waits to read alone when everything was sent.
            if not told and state == Wait.R:
                told = True
                waits_for_answer()
            state = generator.send((yield state))
    except StopIteration as end:
        return end.value
    finally:
        generator.close()

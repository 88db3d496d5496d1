"""Entry: the first statement of a transaction under leases, and BEGIN in one message with it.

With psycopg both are sent together, in a pipeline of libpq's own: a round trip less for every
transaction. Neither ``connection.pipeline()``, which costs more than it saves on a local socket and
ends with a message that before PostgreSQL 17 stops the limit on idleness, nor one simple query,
whose text would hold the lease's nonce, for everybody to read in ``pg_stat_activity``.

Its statement is prepared once a connection, unless psycopg's ``prepare_threshold`` is ``None``, as
it is set behind poolers that do not know of prepared statements.

Where that cannot be done, entry is a statement like any other, and BEGIN comes before it.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from sqlalchemy import text
from sqlalchemy.util import await_only

from fencing.hooks.driver import driver_of
from fencing.schema.names import ENTER

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection

__all__ = ["enter"]

_STATEMENT = text(ENTER)
_PSYCOPG = (
    ENTER.replace(":leases", "$1").replace(":limit_ms", "$2").replace(":receipt", "$3").encode()
)

_NAME = b"fencing_enter"
_prepared: weakref.WeakSet[Any] = weakref.WeakSet()
_unprepared: weakref.WeakSet[Any] = weakref.WeakSet()
# No such statement, or one that somebody else has left.
_NOT_PREPARED = {"26000", "42P05"}

# Of libpq: PGPipelineStatus, PGTransactionStatusType, ExecStatusType; of psycopg: Wait.
_OFF, _IDLE, _FATAL_ERROR, _PIPELINE_SYNC = 0, 0, 7, 10
_TO_READ, _TO_READ_OR_WRITE = 1, 3
_SQLSTATE = ord("C")  # PG_DIAG_SQLSTATE


def enter(connection: Connection, entry: dict[str, object], options: dict[str, Any]) -> str:
    """Present leases in the transaction that begins.

    Args:
        connection: Where it begins; no statement of it has been sent.
        entry: The parameters of ``fencing.enter``.
        options: Execution options of our own statements.

    Returns:
        What tells the transaction from every other.
    """
    driver = driver_of(connection)
    if not _goes_in_one_message(connection, driver):
        stamp: str = connection.execute(_STATEMENT, entry, execution_options=options).scalar_one()
        return stamp
    errors = connection.dialect.loaded_dbapi.errors
    try:
        result = _wait(driver, _begin_and_enter(driver, entry))
        if _sqlstate(result) in _NOT_PREPARED:
            # Somebody has deallocated it, or the connection is not always the same one.
            _unprepared.add(driver)
            _wait(driver, _roll_back(driver))
            result = _wait(driver, _begin_and_enter(driver, entry))
        if result.status == _FATAL_ERROR:
            raise errors.error_from_result(result)
    except errors.Error as error:
        # As SQLAlchemy does with errors of its own statements: it wraps, rolls back, disconnects.
        connection._handle_dbapi_exception(error, ENTER, None, None, None)  # noqa: SLF001
        raise
    answer: str = result.get_value(0, 0).decode()
    return answer


def _goes_in_one_message(connection: Connection, driver: Any) -> bool:  # noqa: ANN401 - the driver's
    dbapi: Any = connection.dialect.loaded_dbapi
    return (
        hasattr(driver, "pgconn")
        and bool(dbapi.capabilities.has_pipeline())
        and driver.pgconn.transaction_status == _IDLE
        and driver.pgconn.pipeline_status == _OFF
    )


def _wait(driver: Any, generator: Generator[int, int, Any]) -> Any:  # noqa: ANN401
    """Have psycopg run the generator, which stays interruptible so."""
    if hasattr(driver, "__aenter__"):
        return await_only(_wait_async(driver, generator))
    with driver.lock:
        return driver.wait(generator)


async def _wait_async(driver: Any, generator: Generator[int, int, Any]) -> Any:  # noqa: ANN401
    async with driver.lock:
        return await driver.wait(generator)


def _begin_and_enter(driver: Any, entry: dict[str, object]) -> Generator[int, int, Any]:  # noqa: ANN401
    """Send both, and return entry's result; yields what is waited for."""
    pgconn = driver.pgconn
    values = [None if value is None else str(value).encode() for value in entry.values()]
    begin = _begin(driver)
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(begin, None)
    if driver.prepare_threshold is None or driver in _unprepared:
        pgconn.send_query_params(_PSYCOPG, values)
    else:
        if driver not in _prepared:
            pgconn.send_prepare(_NAME, _PSYCOPG)
        pgconn.send_query_prepared(_NAME, values)
    results = yield from _results(pgconn)
    pgconn.exit_pipeline_mode()
    failed = next((result for result in results if result.status == _FATAL_ERROR), None)
    if failed is None and driver.prepare_threshold is not None and driver not in _unprepared:
        _prepared.add(driver)
    return results[-1] if failed is None else failed


def _roll_back(driver: Any) -> Generator[int, int, Any]:  # noqa: ANN401
    pgconn = driver.pgconn
    pgconn.enter_pipeline_mode()
    pgconn.send_query_params(b"ROLLBACK", None)
    yield from _results(pgconn)
    pgconn.exit_pipeline_mode()


def _results(pgconn: Any) -> Generator[int, int, list[Any]]:  # noqa: ANN401
    """What a pipeline comes to, once it has been sent."""
    pgconn.pipeline_sync()
    while pgconn.flush():
        if (yield _TO_READ_OR_WRITE) & _TO_READ:
            pgconn.consume_input()
    results: list[Any] = []
    while True:
        while pgconn.is_busy():
            yield _TO_READ
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:  # the end of one statement
            continue
        if result.status == _PIPELINE_SYNC:
            return results
        results.append(result)


def _sqlstate(result: Any) -> str:  # noqa: ANN401
    return (result.error_field(_SQLSTATE) or b"").decode() if result.status == _FATAL_ERROR else ""


def _begin(driver: Any) -> bytes:  # noqa: ANN401
    """BEGIN as psycopg would send it."""
    words = ["BEGIN"]
    if driver.isolation_level is not None:
        words.append("ISOLATION LEVEL " + driver.isolation_level.name.replace("_", " "))
    if driver.read_only is not None:
        words.append("READ ONLY" if driver.read_only else "READ WRITE")
    if driver.deferrable is not None:
        words.append("DEFERRABLE" if driver.deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()

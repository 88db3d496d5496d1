"""What the driver knows of a connection, where SQLAlchemy does not ask, or believes otherwise.

``psycopg`` is psycopg 3, sync and async; ``asyncpg`` comes only through an async engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencing.core.wire import ended_unasked

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = [
    "adapted", "backend_pid", "driver_of", "forgets_idleness", "had_ended", "has_ended",
    "has_failed", "is_autocommit", "is_broken", "is_idle", "is_read_only", "restart_idle_limit",
]  # fmt: skip

# libpq's PGTransactionStatusType, and PGPipelineStatus.
_IDLE, _IN_ERROR, _UNKNOWN = 0, 3, 4  # the last: of one that is closed
_OFF = 0

_HAS_TRANSACTION_TIMEOUT = 170000

_IN_FAILED_TRANSACTION = "25P02"


# Some of these are asked once a transaction or more, so they take what the caller has at hand.


def driver_of(connection: Connection) -> Any:  # noqa: ANN401 - psycopg's or asyncpg's
    """The driver's own connection, also of one that was detached from its pool."""
    return connection.dialect.get_driver_connection(adapted(connection))


def is_idle(driver: Any) -> bool:  # noqa: ANN401 - as above
    """Whether no transaction is open on a driver's connection, nor a pipeline for one."""
    if _is_asyncpg(driver):
        return bool(driver.is_closed() or not driver.is_in_transaction())
    pgconn = driver.pgconn
    status = pgconn.transaction_status
    return bool((status == _IDLE and pgconn.pipeline_status == _OFF) or status == _UNKNOWN)


def has_failed(connection: Connection) -> bool:
    """Whether its transaction can only be rolled back."""
    driver = driver_of(connection)
    if not _is_asyncpg(driver):
        return not driver.closed and driver.info.transaction_status == _IN_ERROR
    if is_idle(driver):
        return False
    # asyncpg knows it, and does not tell.
    cursor = connection.connection.cursor()
    try:
        cursor.execute("SELECT 1")
    except connection.dialect.loaded_dbapi.Error as error:
        return getattr(error, "sqlstate", None) == _IN_FAILED_TRANSACTION
    finally:
        cursor.close()
    return False


def has_ended(driver: Any) -> bool:  # noqa: ANN401 - as above
    """Whether the server has ended the session while nothing was asked of it, as far as is known.

    Then what is sent next is not done, for certain.
    """
    if _is_closed(driver):
        return True
    if _is_asyncpg(driver):
        return False  # its event loop would have noticed
    return ended_unasked(driver.pgconn)


def is_broken(connection: Connection) -> bool:
    """Whether the driver has given its connection up, whatever it has called the error.

    A pooler between us and the server sends the server's last words and some of its own; psycopg
    then complains of two answers to one COMMIT, which SQLAlchemy does not take for a disconnect.
    """
    if connection.closed or connection.invalidated:
        return False
    return _is_closed(driver_of(connection))


def had_ended(error: BaseException | None) -> bool:
    """Whether nothing was sent since the server had ended the session, says an error of asyncpg's.

    Between the server's last words and the end of the connection asyncpg is in a state of its own
    (2: it has received an error that answers nothing), which it does not take for a closed one.
    """
    return "another operation (2) is in progress" in str(error)


def is_autocommit(dbapi_connection: Any) -> bool:  # noqa: ANN401 - the dialect's, around the driver's
    """Whether the driver begins no transactions; asked of :func:`adapted`."""
    return bool(dbapi_connection.autocommit)


def is_read_only(dbapi_connection: Any) -> bool:  # noqa: ANN401 - as above
    """Whether the driver begins READ ONLY transactions; asked of :func:`adapted`."""
    if hasattr(dbapi_connection, "readonly"):
        return bool(dbapi_connection.readonly)
    return bool(dbapi_connection.read_only)


def forgets_idleness(connection: Connection) -> bool:
    """Whether the server's limit on idleness stops after an ``executemany()``.

    psycopg sends it as a pipeline, which it ends with a message that has no answer. Before version
    17 a server takes that for the end of the idleness, and there is no other limit.
    """
    driver = driver_of(connection)
    return not _is_asyncpg(driver) and driver.info.server_version < _HAS_TRANSACTION_TIMEOUT


def restart_idle_limit(connection: Connection) -> None:
    """Begin the limit on idleness anew."""
    cursor = connection.connection.cursor()
    try:
        cursor.execute("SELECT 1")
    finally:
        cursor.close()


def backend_pid(driver: Any) -> int:  # noqa: ANN401 - psycopg's or asyncpg's
    """PostgreSQL's pid of the session."""
    pid: int = driver.get_server_pid() if _is_asyncpg(driver) else driver.pgconn.backend_pid
    return pid


def adapted(connection: Connection) -> Any:  # noqa: ANN401 - the dialect's, around the driver's
    """The connection as SQLAlchemy's dialect has it."""
    return connection.connection.dbapi_connection


def _is_closed(driver: Any) -> bool:  # noqa: ANN401 - psycopg's or asyncpg's
    return bool(driver.is_closed() if _is_asyncpg(driver) else driver.closed)


def _is_asyncpg(driver: Any) -> bool:  # noqa: ANN401 - as above
    # By what it can do: connections may be wrapped, and asyncpg need not be installed.
    return hasattr(driver, "is_in_transaction")

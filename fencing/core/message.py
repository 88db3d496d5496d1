# ruff: noqa: ANN401 - connections are the driver's
"""BEGIN and entry in one message, on a connection of psycopg's.

They are sent in a pipeline of libpq's own: a round trip less for every transaction. Neither
``connection.pipeline()``, which costs more than it saves on a local socket and ends with a message
that before PostgreSQL 17 stops the limit on idleness, nor one simple query, whose text would hold
the lease's nonce, for everybody to read in ``pg_stat_activity``.

Both are prepared once a connection, unless psycopg's ``prepare_threshold`` is ``None``, as it is
set behind poolers that do not know of prepared statements.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from fencing.clock import now
from fencing.schema.names import ENTER

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["begin_and_enter", "goes_in_one_message", "sent"]

_STATEMENT = (
    ENTER.replace(":leases", "$1").replace(":limit_ms", "$2").replace(":receipt", "$3").encode()
)

_NAME, _BEGIN_NAME = b"fencing_enter", b"fencing_begin"
_BEGIN = b"BEGIN"
_prepared: weakref.WeakSet[Any] = weakref.WeakSet()
_unprepared: weakref.WeakSet[Any] = weakref.WeakSet()
# No such statement, or one that somebody else has left.
_NOT_PREPARED = {b"26000", b"42P05"}

# Of libpq: PGPipelineStatus, PGTransactionStatusType, ExecStatusType; of psycopg: Wait.
_OFF, _IDLE, _FATAL_ERROR, _PIPELINE_SYNC = 0, 0, 7, 10
_TO_READ, _TO_READ_OR_WRITE = 1, 3
_SQLSTATE = ord("C")  # PG_DIAG_SQLSTATE


def goes_in_one_message(driver: Any, dbapi: Any) -> bool:
    """Whether it can be done.

    Args:
        driver: The connection.
        dbapi: The module it comes from.
    """
    pgconn = getattr(driver, "pgconn", None)
    return (
        pgconn is not None
        and pgconn.transaction_status == _IDLE
        and pgconn.pipeline_status == _OFF
        and bool(dbapi.capabilities.has_pipeline())
    )


def begin_and_enter(driver: Any, dbapi: Any, entry: dict[str, object]) -> Generator[Any, Any, str]:
    """Begin a transaction and present leases in it; for ``connection.wait()``, under its lock.

    If that is interrupted, the connection may be left in a pipeline, and in a transaction.

    Args:
        driver: A connection that :func:`goes_in_one_message`.
        dbapi: The module it comes from.
        entry: The parameters of ``fencing.enter``.

    Returns:
        What tells the transaction from every other.

    Raises:
        psycopg.Error: As psycopg raises it; the transaction has failed then.
    """
    began_at = now()
    is_prepared = driver.prepare_threshold is not None and driver not in _unprepared
    result = yield from _send(driver, _values(entry), is_prepared=is_prepared)
    if is_prepared and result.error_field(_SQLSTATE) in _NOT_PREPARED:
        # Somebody has deallocated it, or the connection is not always the same one.
        _unprepared.add(driver)
        if driver.pgconn.transaction_status != _IDLE:
            yield from _run(driver.pgconn, [(driver.pgconn.send_query_params, b"ROLLBACK", None)])
        late_ms = int((now() - began_at) * 1000)
        result = yield from _send(driver, _values(entry, late_ms), is_prepared=False)
    if result.status == _FATAL_ERROR:
        raise dbapi.errors.error_from_result(result)
    stamp: str = result.get_value(0, 0).decode()
    return stamp


def _values(entry: dict[str, object], late_ms: int = 0) -> list[bytes | None]:
    """The parameters as they are sent; the limit counts from when they were to be sent first."""
    limit_ms: Any = entry["limit_ms"]
    if limit_ms is not None and late_ms:
        entry = {**entry, "limit_ms": max(1, limit_ms - late_ms)}
    return [None if value is None else str(value).encode() for value in entry.values()]


def sent(work: Generator[int, int, str]) -> Generator[int, int, str]:
    """Begin :func:`begin_and_enter`, up to where the server's answer is waited for.

    Args:
        work: It, not begun.

    Returns:
        The rest of it.

    Raises:
        psycopg.Error: It could not be sent.
    """
    return _resumed(work, next(work))


def _resumed(work: Generator[int, int, str], awaited: int) -> Generator[int, int, str]:
    while True:
        ready = yield awaited
        try:
            awaited = work.send(ready)
        except StopIteration as end:
            stamp: str = end.value
            return stamp


def _send(
    driver: Any, values: list[bytes | None], *, is_prepared: bool
) -> Generator[int, int, Any]:
    """Send both; return entry's result, or the error of what has failed first."""
    pgconn = driver.pgconn
    begin = _begin(driver)
    if not is_prepared:
        plain = pgconn.send_query_params
        return (yield from _run(pgconn, [(plain, begin, None), (plain, _STATEMENT, values)]))
    messages: list[tuple[Any, ...]] = [
        (pgconn.send_query_prepared, _BEGIN_NAME, None)
        if begin is _BEGIN
        else (pgconn.send_query_params, begin, None),
        (pgconn.send_query_prepared, _NAME, values),
    ]
    is_new = driver not in _prepared
    if is_new:
        # The entry's is looked at under a snapshot, and that must be the transaction's own.
        messages.insert(1, (pgconn.send_prepare, _NAME, _STATEMENT))
        messages.insert(0, (pgconn.send_prepare, _BEGIN_NAME, _BEGIN))
    result = yield from _run(pgconn, messages)
    if is_new and result.status != _FATAL_ERROR:
        _prepared.add(driver)
    return result


def _run(pgconn: Any, messages: list[tuple[Any, ...]]) -> Generator[int, int, Any]:
    """Send messages, each a method and its arguments; return as :func:`_send`."""
    pgconn.enter_pipeline_mode()
    for send, *arguments in messages:
        send(*arguments)
    return (yield from _result(pgconn))


def _result(pgconn: Any) -> Generator[int, int, Any]:
    """End the pipeline; return what its last statement has answered, or the first error."""
    pgconn.pipeline_sync()
    while pgconn.flush():
        if (yield _TO_READ_OR_WRITE) & _TO_READ:
            pgconn.consume_input()
    found: Any = None
    while True:
        while pgconn.is_busy():
            yield _TO_READ
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None:  # the end of one statement
            continue
        if result.status == _PIPELINE_SYNC:
            pgconn.exit_pipeline_mode()
            return found
        # After an error come only results that say they were not looked at.
        if found is None or found.status != _FATAL_ERROR:
            found = result


def _begin(driver: Any) -> bytes:
    """BEGIN as psycopg would send it."""
    isolation, read_only, deferrable = driver.isolation_level, driver.read_only, driver.deferrable
    if isolation is None and read_only is None and deferrable is None:
        return _BEGIN
    words = ["BEGIN"]
    if isolation is not None:
        words.append("ISOLATION LEVEL " + isolation.name.replace("_", " "))
    if read_only is not None:
        words.append("READ ONLY" if read_only else "READ WRITE")
    if deferrable is not None:
        words.append("DEFERRABLE" if deferrable else "NOT DEFERRABLE")
    return " ".join(words).encode()

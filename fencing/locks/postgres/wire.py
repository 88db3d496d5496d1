"""One statement on a connection, by a deadline that the server need not keep.

psycopg waits for an answer as long as it takes. Here its connection is used by libpq's own,
non-blocking calls; what is waited for is yielded, and a thread's and a task's way of waiting stand
side by side.
"""

from __future__ import annotations

import asyncio
import re
import select
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.pq import ConnStatus, ExecStatus, PipelineStatus

from fencing.clock import now

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from psycopg.pq.abc import PGconn, PGresult

__all__ = ["Rows", "Statement", "async_ready", "exchange", "exchange_async", "is_alive", "ready"]

Rows = list[tuple[str | None, ...]]
"""An answer: every value as PostgreSQL writes it."""

_GOOD = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY)


class Statement:
    """A statement with named parameters, as libpq takes it.

    Args:
        text: With parameters as SQLAlchemy's ``text()`` reads them.
    """

    def __init__(self, text: str) -> None:
        names = re.findall(r":(\w+)", text)
        self.names: tuple[str, ...] = tuple(dict.fromkeys(names))
        places = {name: f"${place}" for place, name in enumerate(self.names, 1)}
        self.text = re.sub(r":(\w+)", lambda found: places[found[1]], text).encode()
        # As it is prepared under, after the function it calls.
        self.name = "fencing_" + re.findall(r"fencing\.(\w+)\(", text)[0]

    def values(self, given: Mapping[str, object]) -> list[bytes | None]:
        """What is sent for the parameters."""
        return [_encoded(given[name]) for name in self.names]


def _encoded(value: object) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return b"true" if value else b"false"
    return str(value).encode()


def _sending(pgconn: PGconn) -> Generator[bool, None, list[PGresult]]:
    """Send what was queued, and receive what is answered; yields whether it waits to write, too."""
    while pgconn.flush():
        yield True
        pgconn.consume_input()
    in_pipeline = pgconn.pipeline_status != PipelineStatus.OFF
    results: list[PGresult] = []
    while True:
        while pgconn.is_busy():
            yield False
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is not None and result.status != ExecStatus.PIPELINE_SYNC:
            results.append(result)
        elif result is not None or not in_pipeline or pgconn.status != ConnStatus.OK:
            return results


def _running(
    pgconn: PGconn,
    statement: Statement | bytes,
    values: list[bytes | None],
    prepared: set[str] | None,
) -> Generator[bool, None, Rows]:
    """Have a statement executed; prepared, if it may be, in the message that needs it first."""
    if isinstance(statement, bytes):
        pgconn.send_query(statement)
    elif prepared is None:
        pgconn.send_query_params(statement.text, values)
    elif statement.name in prepared:
        pgconn.send_query_prepared(statement.name.encode(), values)
    else:
        pgconn.enter_pipeline_mode()
        pgconn.send_prepare(statement.name.encode(), statement.text)
        pgconn.send_query_prepared(statement.name.encode(), values)
        pgconn.pipeline_sync()
        results = yield from _sending(pgconn)
        if results and results[0].status == ExecStatus.COMMAND_OK:
            prepared.add(statement.name)
        if pgconn.status == ConnStatus.OK:
            pgconn.exit_pipeline_mode()
        return _read(pgconn, results)
    return _read(pgconn, (yield from _sending(pgconn)))


def _read(pgconn: PGconn, results: list[PGresult]) -> Rows:
    rows: Rows = []
    for result in results:
        if result.status not in _GOOD:
            raise psycopg.errors.error_from_result(result)
        for row in range(result.ntuples):
            values = (result.get_value(row, column) for column in range(result.nfields))
            rows.append(tuple(None if value is None else bytes(value).decode() for value in values))
    if not results:
        raise psycopg.OperationalError(pgconn.error_message.decode(errors="replace"))
    return rows


def exchange(
    pgconn: PGconn,
    statement: Statement | bytes,
    values: list[bytes | None],
    end: float,
    prepared: set[str] | None = None,
) -> Rows:
    """Have a statement executed.

    Args:
        pgconn: An idle connection.
        statement: What is sent.
        values: What for its parameters.
        end: How long to wait: a moment of :func:`fencing.clock.now`, in seconds.
        prepared: The names under which statements are prepared on this connection; ``None``: none
            is to be.

    Raises:
        TimeoutError: There was no answer by then; the connection is of no use any more.
        psycopg.Error: The server refused, or the connection was lost.
    """
    steps = _running(pgconn, statement, values, prepared)
    while True:
        try:
            writes = next(steps)
        except StopIteration as over:
            rows: Rows = over.value
            return rows
        if not ready(pgconn.socket, end, writes=writes):
            raise TimeoutError


async def exchange_async(
    pgconn: PGconn,
    statement: Statement | bytes,
    values: list[bytes | None],
    end: float,
    prepared: set[str] | None = None,
) -> Rows:
    """:func:`exchange` for asyncio."""
    steps = _running(pgconn, statement, values, prepared)
    while True:
        try:
            writes = next(steps)
        except StopIteration as over:
            rows: Rows = over.value
            return rows
        if not await async_ready(pgconn.socket, end, writes=writes):
            raise TimeoutError


def ready(socket: int, end: float, *, writes: bool = False, also: int | None = None) -> bool:
    """Wait until there is something to read; whether there was, by a moment of the clock.

    Args:
        socket: Where.
        end: How long: a moment of :func:`fencing.clock.now`, in seconds.
        writes: Whether room to write will do.
        also: Another one to be looked at.
    """
    poll = select.poll()
    poll.register(socket, select.POLLIN | (select.POLLOUT if writes else 0))
    if also is not None:
        poll.register(also, select.POLLIN)
    return bool(poll.poll(max(0.0, end - now()) * 1000))


async def async_ready(socket: int, end: float, *, writes: bool = False) -> bool:
    """:func:`ready` for asyncio."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[bool] = loop.create_future()

    def wake(*, came: bool = True) -> None:
        if not waiting.done():
            waiting.set_result(came)

    timer = loop.call_later(max(0.0, end - now()), lambda: wake(came=False))
    loop.add_reader(socket, wake)
    if writes:
        loop.add_writer(socket, wake)
    try:
        return await waiting
    finally:
        timer.cancel()
        loop.remove_reader(socket)
        if writes:
            loop.remove_writer(socket)


def is_alive(pgconn: Any) -> bool:  # noqa: ANN401 - as above
    """Whether an idle connection is still there, as far as can be told without asking."""
    try:
        if ready(pgconn.socket, 0.0):
            pgconn.consume_input()
            while pgconn.notifies() is not None:
                pass
    except (psycopg.Error, OSError):
        return False
    return bool(pgconn.status == ConnStatus.OK)

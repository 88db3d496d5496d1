"""What an error of psycopg's means for a transaction under leases."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Any

import psycopg

from fencing.core.outcome import Inquiry
from fencing.errors import StaleFenceError, UnfencedWriteError
from fencing.postgres.admission import read_mark, read_mark_async
from fencing.postgres.inquiring import NewConnections
from fencing.schema.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Generator

    from fencing.core.presented import Presented
    from fencing.errors import CommitOutcomeUnknownError, FencingError

__all__ = ["driver_error", "is_of_a_commit", "resolve", "resolve_async"]

_ASKING = 3
"""How long it may take to connect and ask for a mark, in seconds: an error is waiting."""

_ACTIVE_TRANSACTION = "25001"

_CONNECTION_EXCEPTION = "08"
"""Class of what a pooler says when it has lost the server, whatever that has said before."""

_CLOSED_BEFORE = "the connection is closed"
"""What psycopg says where there is nothing to send on."""


def driver_error(error: BaseException) -> psycopg.Error | None:
    """The error of psycopg's that this one is, or was made of: Django wraps them, for one."""
    if isinstance(error, psycopg.Error):
        return error
    cause = error.__cause__
    return cause if isinstance(cause, psycopg.Error) else None


def is_of_a_commit(error: psycopg.Error) -> bool:
    """Whether a connection was lost while its transaction was being committed.

    When somebody else ends the transaction, nobody tells us before; the error's traceback does.
    """
    if str(error) == _CLOSED_BEFORE:
        return False  # nothing was sent
    if error.sqlstate and not error.sqlstate.startswith(_CONNECTION_EXCEPTION):
        return False  # the server has said what came first
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] != "psycopg":
            continue
        if frame.f_code.co_name == "_commit_gen":
            # A block's within another one only releases a savepoint.
            return bool(getattr(frame.f_locals.get("self"), "_outer_transaction", True))
        if frame.f_code.co_name == "execute" and _is_commit(frame.f_locals.get("query")):
            return True
    return False


def _is_commit(query: object) -> bool:
    text = query.decode(errors="replace") if isinstance(query, bytes) else query
    return isinstance(text, str) and text.strip().upper().startswith(("COMMIT", "END"))


def resolve(
    error: psycopg.Error, presented: Presented | None, connection: psycopg.Connection[Any]
) -> FencingError | None:
    """The typed error; ``None`` if this is not about fencing.

    Args:
        error: What psycopg has raised.
        presented: What the transaction had presented; ``None``: nothing.
        connection: Where it was raised; marks are asked for on a new one to the same database.
    """
    unknown = _outcome_unknown(error, presented, connection)
    if unknown is not None:
        return unknown
    deciding = _decide(error, presented, disconnected=connection.closed)
    mark: int | None = None
    try:
        while True:
            mark = _ask_mark(connection, deciding.send(mark))
    except StopIteration as end:
        typed: FencingError | None = end.value
        return typed


async def resolve_async(
    error: psycopg.Error, presented: Presented | None, connection: psycopg.AsyncConnection[Any]
) -> FencingError | None:
    """See :func:`resolve`."""
    unknown = _outcome_unknown(error, presented, connection)
    if unknown is not None:
        return unknown
    deciding = _decide(error, presented, disconnected=connection.closed)
    mark: int | None = None
    try:
        while True:
            mark = await _ask_mark_async(connection, deciding.send(mark))
    except StopIteration as end:
        typed: FencingError | None = end.value
        return typed


def _outcome_unknown(
    error: psycopg.Error,
    presented: Presented | None,
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> CommitOutcomeUnknownError | None:
    if presented is None or not connection.closed:
        return None
    inquiry = Inquiry(NewConnections(_parameters(connection)), presented.stamp, presented.receipt)
    return presented.outcome_unknown(Refusal.read(error), inquiry)


def _decide(
    error: psycopg.Error, presented: Presented | None, *, disconnected: bool
) -> Generator[str, int | None, FencingError | None]:
    """Yields resources whose marks are to be asked for."""
    refusal = Refusal.read(error)
    typed = refusal.as_error()
    if isinstance(typed, StaleFenceError):
        lease = presented and presented.lease_on(typed.resource)
        if lease:
            lease.note_lost()
    elif isinstance(typed, UnfencedWriteError) and typed.table and typed.resource is not None:
        typed = UnfencedWriteError(
            f"{refusal.message}: {_why(presented, typed.resource)}",
            table=typed.table,
            resource=typed.resource,
        )
    if typed is not None or presented is None:
        return typed
    if refusal.sqlstate == _ACTIVE_TRANSACTION:
        error.add_note(
            "fencing: this transaction has presented its lease in its first statement, so SET "
            "TRANSACTION comes too late; set connection.isolation_level instead"
        )
    if not presented.may_be_overtaken(refusal, disconnected=disconnected):
        return None
    for lease in presented.leases:
        mark = yield lease.resource
        overtaken = presented.overtaken(lease, mark, refusal)
        if overtaken is not None:
            return overtaken
    return presented.expired(refusal)


def _why(presented: Presented | None, resource: str) -> str:
    """Why a write was unfenced, as far as we can tell."""
    if presented is None:
        return (
            "begin it with postgres.transaction(connection, lease), or call "
            "postgres.enter(connection, lease) in it first"
        )
    if any(resource == lease.resource for lease in presented.leases):
        return "the transaction that has presented it is over; present it in each transaction"
    names = ", ".join(repr(lease.resource) for lease in presented.leases)
    return (
        f"the transaction has presented leases on {names} only; acquire {resource!r} as well, and "
        "present all of them together"
    )


def _parameters(
    connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any],
) -> dict[str, Any]:
    info = connection.info
    return {
        **info.get_parameters(),
        "password": info.password,
        "connect_timeout": _ASKING,
        "autocommit": True,
        "prepare_threshold": None,
    }


def _ask_mark(connection: psycopg.Connection[Any], resource: str) -> int | None:
    try:
        with psycopg.connect(**_parameters(connection)) as asked:
            return read_mark(asked, resource)
    except psycopg.Error:
        return None


async def _ask_mark_async(connection: psycopg.AsyncConnection[Any], resource: str) -> int | None:
    try:
        async with (
            asyncio.timeout(_ASKING),
            await psycopg.AsyncConnection.connect(**_parameters(connection)) as asked,
        ):
            return await read_mark_async(asked, resource)
    except (psycopg.Error, TimeoutError):
        return None

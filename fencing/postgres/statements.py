"""What is sent on a psycopg connection, and which connections it may be sent on.

A user's connection may have a cursor factory that writes parameters into the statement's text,
which anybody may read in pg_stat_activity, and row factories of all kinds; ours are sent on cursors
of our own. Their parameters hold a lease's nonce.
"""

from __future__ import annotations

import re
from typing import Any

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from fencing.errors import FencingUsageError
from fencing.lease import BaseLease
from fencing.schema import names

__all__ = [
    "ADMIT", "ENTER", "EVICT", "IDENTITY", "MARK", "AnyConnection", "async_cursor", "begun",
    "check_connection", "check_leases", "cursor", "is_idle", "is_in_pipeline", "named",
    "raise_if_unfit", "stamp_of",
]  # fmt: skip

AnyConnection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


def named(statement: str) -> bytes:
    """A statement with parameters as ``text()`` reads them, as psycopg reads them."""
    return re.sub(r":(\w+)", r"%(\1)s", statement).encode()


ADMIT = named(names.ADMIT)
ENTER = named(names.ENTER)
EVICT = named(names.EVICT)
IDENTITY = named(names.IDENTITY)
MARK = named(names.MARK)


def cursor(connection: psycopg.Connection[Any]) -> psycopg.Cursor[tuple[Any, ...]]:
    """A cursor for our own statements."""
    return psycopg.Cursor(connection, row_factory=tuple_row)


def async_cursor(connection: psycopg.AsyncConnection[Any]) -> psycopg.AsyncCursor[tuple[Any, ...]]:
    """:func:`cursor` of an asynchronous connection."""
    return psycopg.AsyncCursor(connection, row_factory=tuple_row)


def is_in_pipeline(connection: AnyConnection) -> bool:
    """Whether a connection is open and in a pipeline."""
    return connection.pgconn.pipeline_status != PipelineStatus.OFF


def stamp_of(row: tuple[Any, ...] | None) -> str:
    """What an entry has answered."""
    return "" if row is None else str(row[0])


def check_connection(connection: object, function: str) -> None:
    """Raise ``TypeError`` unless it is a connection of psycopg's."""
    if not isinstance(connection, psycopg.Connection | psycopg.AsyncConnection):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        hint = (
            "; Django's wrapper has it as its attribute .connection, once ensure_connection() has "
            "been called"
            if kind.startswith("django.") or connection is None
            else ""
        )
        raise TypeError(
            f"postgres.{function}() takes a connection of psycopg 3 (Connection or "
            f"AsyncConnection), not {kind}{hint}"
        )


def check_leases(leases: tuple[BaseLease, ...], function: str) -> None:
    """Raise unless there are leases, one for a resource.

    Raises:
        TypeError: There is none, or something else among them.
        ValueError: Two are on one resource.
    """
    if not leases:
        raise TypeError(f"postgres.{function}() takes at least one lease")
    seen: set[str] = set()
    for lease in leases:
        if not isinstance(lease, BaseLease):
            raise TypeError(f"postgres.{function}() takes leases, not {type(lease).__name__}")
        if lease.resource in seen:
            raise ValueError(f"postgres.{function}() was given two leases on {lease.resource!r}")
        seen.add(lease.resource)


def is_idle(connection: AnyConnection) -> bool:
    """Whether a connection is open and in no transaction."""
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def begun(connection: AnyConnection) -> bool:
    """Whether a connection is in a transaction that goes on."""
    return connection.pgconn.transaction_status == TransactionStatus.INTRANS


def raise_if_unfit(connection: AnyConnection, function: str) -> None:
    """Raise unless a statement can be sent and answered on a connection now.

    Raises:
        FencingUsageError: It is closed, busy, in pipeline mode, in a two-phase transaction, or in
            one that has failed.
    """
    status = connection.pgconn.transaction_status
    if connection.closed or status == TransactionStatus.UNKNOWN:
        raise FencingUsageError(
            f"postgres.{function}() was given a connection that is closed; use one that is open"
        )
    if is_in_pipeline(connection):
        raise FencingUsageError(
            f"postgres.{function}() was given a connection in pipeline mode, in which later "
            "statements are sent before an answer is there; call it outside the pipeline() block, "
            "which may follow inside the transaction"
        )
    if status == TransactionStatus.ACTIVE:
        raise FencingUsageError(
            f"postgres.{function}() was given a connection that is busy with another statement or "
            "COPY; finish that first"
        )
    if status == TransactionStatus.INERROR:
        raise FencingUsageError(
            f"postgres.{function}() was given a connection whose transaction has failed; roll back "
            "first"
        )
    # It has no public name, and a prepared transaction has no holder and ends at no limit.
    if getattr(connection, "_tpc", None) is not None:
        raise FencingUsageError(
            f"postgres.{function}() was given a connection in a two-phase transaction, which "
            "cannot be fenced: a prepared transaction has no holder and ends at no limit; use an "
            "ordinary one"
        )

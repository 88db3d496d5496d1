"""``enter``: a transaction presents its leases; and what is remembered of it."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, overload

import psycopg

from fencing.core.presented import Presented
from fencing.errors import FencingUsageError
from fencing.postgres.statements import (
    ENTER,
    async_cursor,
    check_connection,
    check_leases,
    cursor,
    is_idle,
    raise_if_unfit,
    stamp_of,
)
from fencing.postgres.verdict import resolve, resolve_async

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator

    from fencing.lease import BaseLease
    from fencing.postgres.statements import AnyConnection

__all__ = ["Entry", "GuardedScope", "enter", "latest_entry", "open_blocks"]


class GuardedScope:
    """The scope of a lease that a guard of bare psycopg has acquired."""

    @property
    def keeps_receipts(self) -> bool:
        """Whether transactions under the lease leave receipts."""
        raise NotImplementedError

    def observe(self, connection: AnyConnection) -> None:
        """The lease is presented on a connection."""
        raise NotImplementedError


def _guarded(leases: tuple[BaseLease, ...]) -> Iterator[GuardedScope]:
    for lease in leases:
        if isinstance(lease.scope, GuardedScope):
            yield lease.scope


class Entry(Presented):
    """What one transaction of a connection has presented.

    Attributes:
        in_block: Whether the block of :func:`fencing.postgres.transaction` that began it has not
            ended. When a transaction that was only entered ends, nobody tells us.
    """

    def __init__(
        self,
        connection: AnyConnection,
        leases: tuple[BaseLease, ...],
        *,
        with_receipt: bool = False,
    ) -> None:
        scopes = list(_guarded(leases))
        with_receipt = with_receipt or any(scope.keeps_receipts for scope in scopes)
        pid = connection.pgconn.backend_pid
        super().__init__(leases, backend_pid=pid, with_receipt=with_receipt)
        self.in_block = False
        for scope in scopes:
            scope.observe(connection)

    def note_on(self, connection: AnyConnection) -> None:
        """It is the latest of its connection."""
        _entries[connection] = self


# Without a lock, for which a signal handler would wait for its own thread: it is changed, and what
# is in it copied, in one step.
_entries: weakref.WeakKeyDictionary[AnyConnection, Entry] = weakref.WeakKeyDictionary()


def latest_entry(connection: AnyConnection) -> Entry | None:
    """What was last presented on a connection, in a transaction that may have ended."""
    return _entries.get(connection)


def open_blocks(resource: str) -> Iterator[tuple[Entry, BaseLease]]:
    """The open transaction blocks that have presented a lease on a resource."""
    for reference in _entries.keyrefs():
        connection = reference()
        entry = None if connection is None else latest_entry(connection)
        if connection is None or entry is None or not entry.in_block or connection.closed:
            continue
        lease = entry.lease_on(resource)
        if lease is not None:
            yield entry, lease


def _forget_in_child() -> None:
    _entries.clear()  # the transactions are the parent's


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


@overload
def enter(connection: psycopg.Connection[Any], *leases: BaseLease) -> None: ...
@overload
def enter(connection: psycopg.AsyncConnection[Any], *leases: BaseLease) -> Awaitable[None]: ...
def enter(connection: AnyConnection, *leases: BaseLease) -> Awaitable[None] | None:
    """Present leases in a transaction that somebody else begins and ends.

    It belongs before the transaction's first read. Outside a transaction it begins one, as any
    statement does; not in autocommit mode, where it would end at once. The server ends the
    transaction when the trust that is left in the leases now is used up. Commit and errors stay
    with whoever manages the transaction; see :func:`errors_translated`, and :func:`transaction`
    for a block that does all of it.

    Args:
        connection: The connection; awaited if it is asynchronous.
        leases: Admitted leases, at least one: all that the transaction needs, since each call
            replaces what was presented before.

    Raises:
        StaleFenceError: A newer holder has been admitted.
        UnfencedWriteError: A lease was never admitted in this database.
        LeaseLostError: A lease is over; nothing was sent.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The connection is in autocommit mode and in no transaction, or cannot
            be used now.
        TypeError: An argument is of the wrong type.
        ValueError: Two leases are on one resource.
    """
    check_connection(connection, "enter")
    check_leases(leases, "enter")
    if isinstance(connection, psycopg.AsyncConnection):
        return _enter_async(connection, leases)
    entry = _prepare(connection, leases)
    try:
        entry.stamp = stamp_of(cursor(connection).execute(ENTER, entry.entry).fetchone())
    except psycopg.Error as error:
        typed = resolve(error, entry, connection)
        if typed is None:
            raise
        raise typed from error
    entry.note_on(connection)
    return None


async def _enter_async(
    connection: psycopg.AsyncConnection[Any], leases: tuple[BaseLease, ...]
) -> None:
    entry = _prepare(connection, leases)
    try:
        entered = await async_cursor(connection).execute(ENTER, entry.entry)
        entry.stamp = stamp_of(await entered.fetchone())
    except psycopg.Error as error:
        typed = await resolve_async(error, entry, connection)
        if typed is None:
            raise
        raise typed from error
    entry.note_on(connection)


def _prepare(connection: AnyConnection, leases: tuple[BaseLease, ...]) -> Entry:
    raise_if_unfit(connection, "enter")
    if connection.autocommit and is_idle(connection):
        raise FencingUsageError(
            "postgres.enter() was given a connection in autocommit mode and in no transaction, "
            "where what is presented would be over at once; begin a transaction first, or use "
            "postgres.transaction()"
        )
    for lease in leases:
        lease.raise_if_over()
    return Entry(connection, leases)

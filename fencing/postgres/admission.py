"""``admit``: a lease's token is committed as its resource's high-water mark."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, overload

import psycopg

from fencing.clock import now
from fencing.errors import FencingUsageError
from fencing.lease import BaseLease
from fencing.postgres.statements import (
    ADMIT,
    EVICT,
    IDENTITY,
    MARK,
    async_cursor,
    check_connection,
    cursor,
    is_idle,
    raise_if_unfit,
)
from fencing.schema.names import ADMISSION_ISOLATION
from fencing.schema.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from fencing.lease import AsyncLease, Lease
    from fencing.postgres.statements import AnyConnection

__all__ = [
    "admit", "evict", "evict_async", "read_identity", "read_identity_async", "read_mark",
    "read_mark_async", "send_admission", "send_admission_async",
]  # fmt: skip

# A single statement has the isolation level and the mode that the session has by default.
_OTHER_DEFAULTS = {ADMISSION_ISOLATION, "25006"}
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

_MAX_MILLISECONDS = 2**31 - 1


@overload
def admit(
    connection: psycopg.Connection[Any], lease: Lease, *, wait: float | None = None
) -> None: ...
@overload
def admit(
    connection: psycopg.AsyncConnection[Any], lease: AsyncLease, *, wait: float | None = None
) -> Awaitable[None]: ...
def admit(
    connection: AnyConnection, lease: BaseLease, *, wait: float | None = None
) -> Awaitable[None] | None:
    """Admit a lease that was acquired from a lock service directly.

    In a transaction of its own: inside another one, the high-water mark would roll back with it.
    The connection's settings are as before when this returns; nothing else may use it meanwhile.
    A lease of a :class:`PsycopgGuard` has been admitted already.

    Args:
        connection: An idle connection; awaited if it is asynchronous.
        lease: A lease of any lock service.
        wait: Longest wait for open transactions of earlier holders, in seconds; default: for as
            long as the lease is trusted.

    Raises:
        StaleFenceError: A newer holder has been admitted. If the lock service has lost its
            counter, acquire again with ``floor=error.current_token``; a guard does so by itself.
        LockNotAcquiredError: Open transactions of earlier holders did not end in time;
            ``blocked_by`` names their backends.
        LeaseLostError: The lease is over.
        LockServiceError: The token is implausibly far above the mark.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The connection is in a transaction, or cannot be used now.
        TypeError: An argument is of the wrong type.
        ValueError: ``wait`` is negative.
    """
    check_connection(connection, "admit")
    if not isinstance(lease, BaseLease):
        raise TypeError(f"postgres.admit() takes a lease, not {type(lease).__name__}")
    if wait is not None and not wait >= 0:
        raise ValueError(f"wait must be 0 or more seconds, not {wait!r}")
    until = lease.trusted_until if wait is None else min(now() + wait, lease.trusted_until)
    if isinstance(connection, psycopg.AsyncConnection):
        return _admit_async(connection, lease, until)
    _check(connection, lease)
    send_admission(connection, lease, until)
    lease.note_admitted()
    lease.raise_if_over()
    return None


async def _admit_async(
    connection: psycopg.AsyncConnection[Any], lease: BaseLease, until: float
) -> None:
    _check(connection, lease)
    await send_admission_async(connection, lease, until)
    lease.note_admitted()
    lease.raise_if_over()


def _check(connection: AnyConnection, lease: BaseLease) -> None:
    raise_if_unfit(connection, "admit")
    if not is_idle(connection):
        raise FencingUsageError(
            "postgres.admit() was given a connection in a transaction, with which the admission "
            "would roll back; commit or roll back first, or use another connection"
        )
    lease.raise_if_over()


def send_admission(connection: psycopg.Connection[Any], lease: BaseLease, until: float) -> None:
    """Admit a lease on an idle connection.

    Args:
        connection: The connection.
        lease: The lease.
        until: How long to wait for open transactions of other holders: a moment of
            :func:`fencing.clock.now`, in seconds.
    """
    with _autocommit(connection), cursor(connection) as sent:
        try:
            sent.execute(ADMIT, _values(lease, until))
        except psycopg.Error as error:
            if error.sqlstate not in _OTHER_DEFAULTS:
                _raise_typed(error, lease)
        else:
            return
        try:
            sent.execute(_BEGIN)
            sent.execute(ADMIT, _values(lease, until))
            sent.execute(b"COMMIT")
        except psycopg.Error as error:
            _raise_typed(error, lease)


async def send_admission_async(
    connection: psycopg.AsyncConnection[Any], lease: BaseLease, until: float
) -> None:
    """See :func:`send_admission`."""
    async with _autocommit_async(connection), async_cursor(connection) as sent:
        try:
            await sent.execute(ADMIT, _values(lease, until))
        except psycopg.Error as error:
            if error.sqlstate not in _OTHER_DEFAULTS:
                _raise_typed(error, lease)
        else:
            return
        try:
            await sent.execute(_BEGIN)
            await sent.execute(ADMIT, _values(lease, until))
            await sent.execute(b"COMMIT")
        except psycopg.Error as error:
            _raise_typed(error, lease)


def read_identity(connection: psycopg.Connection[Any]) -> str:
    """Which database it is, asked for on an idle connection; empty if it does not tell."""
    with _autocommit(connection), cursor(connection) as asked:
        try:
            return _identity(asked.execute(IDENTITY).fetchone())
        except psycopg.ProgrammingError:
            return ""  # an older schema, or a role without the right


async def read_identity_async(connection: psycopg.AsyncConnection[Any]) -> str:
    """See :func:`read_identity`."""
    async with _autocommit_async(connection), async_cursor(connection) as asked:
        try:
            return _identity(await (await asked.execute(IDENTITY)).fetchone())
        except psycopg.ProgrammingError:
            return ""


def _identity(row: tuple[Any, ...] | None) -> str:
    return "" if row is None else str(row[0])


def read_mark(connection: psycopg.Connection[Any], resource: str) -> int | None:
    """A resource's high-water mark, asked for on an idle connection."""
    with _autocommit(connection), cursor(connection) as asked:
        return _mark(asked.execute(MARK, {"resource": resource}).fetchone())


async def read_mark_async(connection: psycopg.AsyncConnection[Any], resource: str) -> int | None:
    """See :func:`read_mark`."""
    async with _autocommit_async(connection), async_cursor(connection) as asked:
        await asked.execute(MARK, {"resource": resource})
        return _mark(await asked.fetchone())


def evict(connection: psycopg.Connection[Any], lease: BaseLease, since: float) -> list[int]:
    """End the backends that keep a lease's admission waiting; on an idle connection.

    See :meth:`fencing.core.performing.PlannedAdmissions.evict`.
    """
    values = {"resource": lease.resource, "token": lease.token, "since": since}
    try:
        with _autocommit(connection), cursor(connection) as sent:
            return _pids(sent.execute(EVICT, values).fetchone())
    except psycopg.Error as error:
        _raise_refused(error, lease)


async def evict_async(
    connection: psycopg.AsyncConnection[Any], lease: BaseLease, since: float
) -> list[int]:
    """See :func:`evict`."""
    values = {"resource": lease.resource, "token": lease.token, "since": since}
    try:
        async with _autocommit_async(connection), async_cursor(connection) as sent:
            await sent.execute(EVICT, values)
            return _pids(await sent.fetchone())
    except psycopg.Error as error:
        _raise_refused(error, lease)


def _pids(row: tuple[Any, ...] | None) -> list[int]:
    return [] if row is None else [int(pid) for pid in row[0]]


def _raise_refused(error: psycopg.Error, lease: BaseLease) -> NoReturn:
    typed = Refusal.read(error).as_eviction_error(lease.resource)
    if typed is None:
        raise error
    raise typed from error


def _mark(row: tuple[Any, ...] | None) -> int | None:
    return None if row is None or row[0] is None else int(row[0])


def _values(lease: BaseLease, until: float) -> dict[str, object]:
    return {
        "resource": lease.resource,
        "token": lease.token,
        "holder": lease.holder,
        "owner": lease.owner,
        "wait_ms": min(max(0, int((until - now()) * 1000)), _MAX_MILLISECONDS),
    }


def _raise_typed(error: psycopg.Error, lease: BaseLease) -> NoReturn:
    typed = Refusal.read(error).as_admission_error(lease.resource)
    if typed is None:
        raise error
    raise typed from error


@contextmanager
def _autocommit(connection: psycopg.Connection[Any]) -> Iterator[None]:
    before = connection.autocommit
    if not before:
        connection.autocommit = True
    try:
        yield
    finally:
        if not connection.closed and not is_idle(connection):
            # A refused admission at an isolation level of its own, or an interrupt.
            with suppress(psycopg.Error):
                connection.rollback()
            if not is_idle(connection):
                connection.close()
        if not before and not connection.closed:
            connection.autocommit = False


@asynccontextmanager
async def _autocommit_async(connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    before = connection.autocommit
    if not before:
        await connection.set_autocommit(True)
    try:
        yield
    finally:
        if not connection.closed and not is_idle(connection):
            with suppress(psycopg.Error):
                await connection.rollback()
            if not is_idle(connection):
                await connection.close()
        if not before and not connection.closed:
            await connection.set_autocommit(False)

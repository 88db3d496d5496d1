"""``transaction`` and ``errors_translated``: blocks under leases."""

from __future__ import annotations

from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
)
from typing import TYPE_CHECKING, Any, overload

import psycopg
from psycopg.pq import TransactionStatus

from fencing.core.message import begin_and_enter
from fencing.core.wire import ended_unasked
from fencing.errors import FencingError, FencingUsageError
from fencing.postgres.entry import Entry, latest_entry
from fencing.postgres.statements import (
    ENTER,
    async_cursor,
    check_connection,
    check_leases,
    cursor,
    is_idle,
    is_in_pipeline,
    raise_if_unfit,
    stamp_of,
)
from fencing.postgres.verdict import driver_error, is_of_a_commit, resolve, resolve_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import TracebackType

    from fencing.lease import BaseLease
    from fencing.postgres.statements import AnyConnection

__all__ = ["errors_translated", "transaction"]


@overload
def transaction(
    connection: psycopg.Connection[Any], *leases: BaseLease, receipt: bool = False
) -> AbstractContextManager[psycopg.Transaction]: ...
@overload
def transaction(
    connection: psycopg.AsyncConnection[Any], *leases: BaseLease, receipt: bool = False
) -> AbstractAsyncContextManager[psycopg.AsyncTransaction]: ...
def transaction(
    connection: AnyConnection, *leases: BaseLease, receipt: bool = False
) -> (
    AbstractContextManager[psycopg.Transaction]
    | AbstractAsyncContextManager[psycopg.AsyncTransaction]
):
    """A block that is one transaction under leases: ``with``, or ``async with``.

    ::

        begin     BEGIN and entry, in one message
        end       the leases' deadlines are checked once more, then COMMIT
        error     ROLLBACK; a refusal of the database comes as an error of this package

    Otherwise it is psycopg's own ``connection.transaction()``, in autocommit mode or not: blocks of
    that inside it are savepoints, and an exception of the body wins. Statements in between are not
    looked at; the server ends the transaction when the trust that was left in the leases at
    its beginning is used up. (Before version 17 a pipeline, and ``executemany()``, which is one,
    should not be the last that is sent for long: the server's limit on idleness begins anew only
    with the next statement.)

    Args:
        connection: A connection in no transaction.
        leases: Admitted leases, at least one: all that the transaction needs.
        receipt: Whether the transaction leaves a row by which the outcome of a COMMIT without an
            answer is certain. It writes then, whatever the body does.

    Returns:
        A context manager, whose value is psycopg's ``Transaction``.

    Raises:
        StaleFenceError: A newer holder has been admitted.
        UnfencedWriteError: A guarded row was written whose lease was not presented, or a lease
            was never admitted.
        LeaseLostError: A lease is over: nothing was begun, or nothing was committed.
        CommitOutcomeUnknownError: The connection was lost during COMMIT; the error can find out.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: A transaction has begun already, or the connection cannot be used now.
        TypeError: An argument is of the wrong type.
        ValueError: Two leases are on one resource.
    """
    check_connection(connection, "transaction")
    check_leases(leases, "transaction")
    if isinstance(connection, psycopg.AsyncConnection):
        return _AsyncBlock(connection, leases, receipt=receipt)
    return _Block(connection, leases, receipt=receipt)


class _BegunByEntry:
    """Mixed into psycopg's transactions: BEGIN is left to the message that brings the entry."""

    def _get_enter_commands(self) -> Iterator[bytes]:
        if not psycopg.Pipeline.is_supported():
            yield from super()._get_enter_commands()  # type: ignore[misc]  # psycopg's, into which it is mixed


class _Transaction(_BegunByEntry, psycopg.Transaction):
    pass


class _AsyncTransaction(_BegunByEntry, psycopg.AsyncTransaction):
    pass


class _BaseBlock:
    def __init__(self, leases: tuple[BaseLease, ...], *, receipt: bool) -> None:
        self._leases = leases
        self._with_receipt = receipt
        self._presented: Entry | None = None

    def _prepare(self, connection: AnyConnection) -> Entry:
        if self._presented is not None:
            raise FencingUsageError("a postgres.transaction() block can be used only once")
        raise_if_unfit(connection, "transaction")
        if not is_idle(connection):
            raise FencingUsageError(
                "postgres.transaction() was given a connection in a transaction; a lease is "
                "presented in a transaction's first statement, so commit or roll back first, or "
                "call postgres.enter(connection, lease) where the transaction begins"
            )
        for lease in self._leases:
            lease.raise_if_over()
        entry = Entry(connection, self._leases, with_receipt=self._with_receipt)
        self._presented = entry
        return entry

    @property
    def _entry(self) -> Entry:
        assert self._presented is not None  # noqa: S101 - the block was entered
        return self._presented

    def _may_commit(self, connection: AnyConnection) -> None:
        """Raise if the transaction has outlived its trust, or has failed."""
        lease = self._entry.lease_over
        try:
            if lease is not None:
                lease.raise_if_over()
            if connection.pgconn.transaction_status == TransactionStatus.INERROR:
                # PostgreSQL answers COMMIT with a ROLLBACK here, and psycopg with success.
                raise psycopg.errors.InFailedSqlTransaction(
                    "the transaction has failed, and its error was not raised out of the block; "
                    "catch errors outside it, or inside a savepoint: connection.transaction()"
                )
        except (FencingError, psycopg.Error) as error:
            error.add_note("fencing: COMMIT was not sent; nothing of this transaction is committed")
            raise
        # If the server has ended the session before COMMIT is sent, nothing is committed.
        self._entry.note_commit(ended=ended_unasked(connection.pgconn))


class _Block(_BaseBlock, AbstractContextManager[psycopg.Transaction]):
    def __init__(
        self, connection: psycopg.Connection[Any], leases: tuple[BaseLease, ...], *, receipt: bool
    ) -> None:
        super().__init__(leases, receipt=receipt)
        self._connection = connection
        self._transaction = _Transaction(connection)

    def __enter__(self) -> psycopg.Transaction:
        connection = self._connection
        entry = self._prepare(connection)
        begun = False
        try:
            self._transaction.__enter__()
            begun = True
            if is_idle(connection):
                with connection.lock:
                    entry.stamp = connection.wait(begin_and_enter(connection, psycopg, entry.entry))
            else:
                entry.stamp = stamp_of(cursor(connection).execute(ENTER, entry.entry).fetchone())
            entry.note_on(connection)
            entry.in_block = True
            return self._transaction  # noqa: TRY300 - an interrupt may come here, too
        except BaseException as error:
            entry.in_block = False
            if not isinstance(error, Exception):
                # An interrupt comes anywhere, between an act and its note as well; a connection
                # that is closed surely has nothing of ours.
                connection.close()
            if begun:
                self._transaction.__exit__(type(error), error, error.__traceback__)
            self._raise_typed(error)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        body: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            if body is not None:
                swallowed = self._transaction.__exit__(kind, body, traceback)
                if not swallowed:
                    self._raise_typed(body)
                return swallowed
            try:
                self._may_commit(self._connection)
            except BaseException as error:
                self._transaction.__exit__(type(error), error, error.__traceback__)
                raise
            try:
                return self._transaction.__exit__(None, None, None)
            except psycopg.Error as error:
                self._raise_typed(error)
                raise
        except BaseException as error:
            if not isinstance(error, Exception) and not is_idle(self._connection):
                self._connection.close()  # interrupted before it was ended
            raise
        finally:
            self._entry.in_block = False

    def _raise_typed(self, error: BaseException) -> None:
        if isinstance(error, psycopg.Error):
            typed = resolve(error, self._entry, self._connection)
            if typed is not None:
                raise typed from error


class _AsyncBlock(_BaseBlock, AbstractAsyncContextManager[psycopg.AsyncTransaction]):
    def __init__(
        self,
        connection: psycopg.AsyncConnection[Any],
        leases: tuple[BaseLease, ...],
        *,
        receipt: bool,
    ) -> None:
        super().__init__(leases, receipt=receipt)
        self._connection = connection
        self._transaction = _AsyncTransaction(connection)

    async def __aenter__(self) -> psycopg.AsyncTransaction:
        connection = self._connection
        entry = self._prepare(connection)
        begun = False
        try:
            await self._transaction.__aenter__()
            begun = True
            if is_idle(connection):
                async with connection.lock:
                    entry.stamp = await connection.wait(
                        begin_and_enter(connection, psycopg, entry.entry)
                    )
            else:
                entered = await async_cursor(connection).execute(ENTER, entry.entry)
                entry.stamp = stamp_of(await entered.fetchone())
        except BaseException as error:
            if is_in_pipeline(connection):  # cancelled: answers are unread, it cannot be left
                await connection.close()
            if begun:
                await self._transaction.__aexit__(type(error), error, error.__traceback__)
            await self._raise_typed(error)
            raise
        entry.note_on(self._connection)
        entry.in_block = True
        return self._transaction

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        body: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        try:
            if body is not None:
                swallowed = await self._transaction.__aexit__(kind, body, traceback)
                if not swallowed:
                    await self._raise_typed(body)
                return swallowed
            try:
                self._may_commit(self._connection)
            except BaseException as error:
                await self._transaction.__aexit__(type(error), error, error.__traceback__)
                raise
            try:
                return await self._transaction.__aexit__(None, None, None)
            except psycopg.Error as error:
                await self._raise_typed(error)
                raise
        except BaseException as error:
            if not isinstance(error, Exception) and not is_idle(self._connection):
                await self._connection.close()
            raise
        finally:
            self._entry.in_block = False

    async def _raise_typed(self, error: BaseException) -> None:
        if isinstance(error, psycopg.Error):
            typed = await resolve_async(error, self._entry, self._connection)
            if typed is not None:
                raise typed from error


@overload
def errors_translated(connection: psycopg.Connection[Any]) -> AbstractContextManager[None]: ...
@overload
def errors_translated(
    connection: psycopg.AsyncConnection[Any],
) -> AbstractAsyncContextManager[None]: ...
def errors_translated(
    connection: AnyConnection,
) -> AbstractContextManager[None] | AbstractAsyncContextManager[None]:
    """A block out of which refusals come as errors of this package.

    For code that manages its transactions itself and calls :func:`enter` in them; the block goes
    around the whole transaction, its COMMIT included. It also knows errors that were made of
    psycopg's, as Django's are. Everything else passes as it is.

    Args:
        connection: The connection; ``async with`` if it is asynchronous.

    Raises:
        StaleFenceError: A newer holder has been admitted, or the session was ended and one has.
        UnfencedWriteError: A guarded row was written whose lease was not presented.
        LeaseExpiredError: The server has ended the session when the lease's trust was used up.
        CommitOutcomeUnknownError: The connection was lost during COMMIT; the error can find out,
            though without a receipt it often cannot.
        GuardNotInstalledError: The database has no schema ``fencing``.
        TypeError: An argument is of the wrong type.
    """
    check_connection(connection, "errors_translated")
    if isinstance(connection, psycopg.AsyncConnection):
        return _translated_async(connection)
    return _translated(connection)


@contextmanager
def _translated(connection: psycopg.Connection[Any]) -> Iterator[None]:
    over = _entry_that_is_over(connection)
    try:
        yield
    except FencingError:
        raise
    except Exception as error:
        cause = driver_error(error)
        typed = cause and resolve(cause, _entry_of(cause, over, connection), connection)
        if not typed:
            raise
        raise typed from error


@asynccontextmanager
async def _translated_async(connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    over = _entry_that_is_over(connection)
    try:
        yield
    except FencingError:
        raise
    except Exception as error:
        cause = driver_error(error)
        typed = cause and await resolve_async(cause, _entry_of(cause, over, connection), connection)
        if not typed:
            raise
        raise typed from error


def _entry_that_is_over(connection: AnyConnection) -> Entry | None:
    """What was presented in a transaction before; its leases say nothing about the next."""
    return latest_entry(connection) if is_idle(connection) else None


def _entry_of(error: psycopg.Error, over: Entry | None, connection: AnyConnection) -> Entry | None:
    """What was presented in the transaction that an error has ended."""
    entry = latest_entry(connection)
    if entry is None or entry is over:
        return None
    if connection.closed and is_of_a_commit(error):
        entry.committing = True
    return entry

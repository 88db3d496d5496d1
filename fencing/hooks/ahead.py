"""Entry, sent ahead: its answer is waited for when something is to be done in the transaction.

::

    begin               BEGIN and entry are sent
                        SQLAlchemy builds the first statement; the server enters meanwhile
    first statement     the answer is looked at, and raised if entry was refused
    commit, rollback    likewise, in a transaction without a statement

So what the server needs for an entry is mostly over when it is asked for: see docs/decisions.md.

Between the two the connection is in a pipeline of libpq's that psycopg knows nothing of. SQLAlchemy
says before what it does; whoever takes the driver's connection out of it (for COPY, say) does not.
So until then the connection has a ``wait`` of ours, by which psycopg does everything that takes the
server; and cursors are made of classes of ours, for two methods of theirs look for a pipeline
before they wait.
"""

from __future__ import annotations

import contextlib
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

from fencing.errors import FencingUsageError
from fencing.schema.names import ENTER

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection

    from fencing.hooks.transaction import Presentation

__all__ = ["EntryAhead", "as_sqlalchemy_raises_it", "may_go_ahead"]

_IDLE, _OFF = 0, 0  # of libpq: PGTransactionStatusType, PGPipelineStatus


def may_go_ahead(driver: Any, dbapi: Any) -> bool:  # noqa: ANN401 - psycopg's
    """Whether the answer can be left for later.

    Only where ``wait`` is surely psycopg's: that of a wrapper is called by nobody. And not on an
    asynchronous connection, where it would be awaited.

    Args:
        driver: The connection.
        dbapi: The module it comes from.
    """
    return (
        issubclass(type(driver), dbapi.Connection)
        and "wait" not in vars(driver)
        and isinstance(driver.cursor_factory, type)
        and isinstance(driver.server_cursor_factory, type)
    )


def as_sqlalchemy_raises_it(connection: Connection, error: BaseException) -> None:
    """Raise an error of an entry as SQLAlchemy does with those of its own statements.

    It wraps it, has it translated by whoever listens, and closes what is lost.
    """
    connection._handle_dbapi_exception(error, ENTER, None, None, None)  # noqa: SLF001 - no public way does as much


class EntryAhead:
    """An entry that was sent, and whose answer was not looked at.

    Args:
        connection: Where the transaction has begun.
        driver: Its driver's connection.
        presentation: What is presented; told the transaction's stamp.
        answer: Waits for the answer.
    """

    def __init__(
        self,
        connection: Connection,
        driver: Any,  # noqa: ANN401 - psycopg's
        presentation: Presentation,
        answer: Generator[int, int, str],
    ) -> None:
        # None of them is held: the driver's connection holds us, and all of them may be dropped.
        self._connection = weakref.ref(connection)
        self._driver = weakref.ref(driver)
        self._presentation = weakref.ref(presentation)
        self._error: Any = connection.dialect.loaded_dbapi.Error
        self._answer: Any = answer
        self._refusal: Exception | None = None
        self._factories = driver.cursor_factory, driver.server_cursor_factory
        driver.cursor_factory = _settling(driver.cursor_factory, "stream")
        driver.server_cursor_factory = _settling(driver.server_cursor_factory, "execute")
        driver.wait = self._wait

    def settle(self) -> None:
        """Wait for the answer.

        Raises:
            FencingUsageError: That was interrupted before, and the answer is lost.
            WriteRefusedError: Entry was refused; or whatever else it has failed with, as SQLAlchemy
                raises it.
        """
        driver: Any = self._driver()
        try:
            with driver.lock:
                self._receive(driver)
        except self._error as error:
            self._raise(error)
            raise

    def drop(self) -> bool:
        """Wait for the answer, whatever it is: the transaction is rolled back.

        Returns:
            Whether it can be: after an interrupt there may be answers that nobody reads.
        """
        driver: Any = self._driver()
        with contextlib.suppress(self._error, FencingUsageError), driver.lock:
            self._receive(driver)
        return bool(driver.pgconn.pipeline_status == _OFF)

    def _receive(self, driver: Any) -> None:  # noqa: ANN401 - psycopg's
        try:
            stamp: str | None = type(driver).wait(driver, self._answer)
        except self._error:
            self._note("")
            raise
        finally:
            # Unless it was interrupted, and psycopg has not seen to the rest.
            if self._answer.gi_frame is None or driver.closed:
                self._restore(driver)
        if stamp is None:
            raise FencingUsageError(
                "this transaction was interrupted while it presented its leases; roll it back, and "
                "begin another one"
            )
        self._note(stamp)

    def _restore(self, driver: Any) -> None:  # noqa: ANN401 - psycopg's
        driver.cursor_factory, driver.server_cursor_factory = self._factories
        vars(driver).pop("wait", None)

    def _note(self, stamp: str) -> None:
        presentation = self._presentation()
        if presentation is not None:
            presentation.stamp, presentation.ahead = stamp, None

    def _wait(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - psycopg's
        """In place of the connection's; whoever calls it has its lock."""
        driver: Any = self._driver()
        wait = type(driver).wait
        if self._refusal is None:
            try:
                self._receive(driver)
            except self._error as error:
                self._refusal = error
                driver.wait = self._wait
            else:
                return wait(driver, *args, **kwargs)
        # psycopg keeps count of what it has begun, so it is let begin what cannot succeed any more.
        try:
            done = wait(driver, *args, **kwargs)
        except self._error:
            self._restore(driver)
            self._raise(self._refusal)
            raise self._refusal from None
        if driver.pgconn.transaction_status == _IDLE:  # it was a ROLLBACK
            self._restore(driver)
        return done

    def _raise(self, error: Exception) -> None:
        connection = self._connection()
        if connection is not None and connection.in_transaction():
            as_sqlalchemy_raises_it(connection, error)


@cache
def _settling(cursor: type, method: str) -> type:
    """A class of cursors one of whose methods waits for the answer first, if that was not done."""
    without: Any = getattr(cursor, method)

    def settled(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - psycopg's
        ahead = getattr(self.connection.wait, "__self__", None)
        if isinstance(ahead, EntryAhead):
            ahead.settle()
        return without(self, *args, **kwargs)

    # By the same name, because people look at it.
    names = {"__module__": cursor.__module__, "__qualname__": cursor.__qualname__}
    return type(cursor.__name__, (cursor,), {"__slots__": (), method: settled, **names})

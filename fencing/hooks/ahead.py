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
from typing import TYPE_CHECKING, Any, TypeAlias

from fencing.errors import FencingUsageError
from fencing.schema.names import ENTER

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from sqlalchemy import Connection

    from fencing.errors import FencingError
    from fencing.hooks.transaction import Presentation

__all__ = ["EntryAhead", "as_sqlalchemy_raises_it", "may_go_ahead"]

# psycopg's connection, cursor and module. They come through SQLAlchemy, which does not type them,
# and psycopg itself is not imported here: an engine of asyncpg's does without it.
Driver: TypeAlias = Any
Cursor: TypeAlias = Any
Dbapi: TypeAlias = Any

_IDLE, _OFF = 0, 0  # of libpq: PGTransactionStatusType, PGPipelineStatus
_ROLLBACK = "_rollback_gen"  # psycopg's name of what a rollback waits for
_CURSORS = ("Cursor", "ClientCursor", "RawCursor", "ServerCursor", "RawServerCursor")


def may_go_ahead(driver: Driver, dbapi: Dbapi) -> bool:
    """Whether the answer can be left for later.

    Only where all that has to be replaced is psycopg's own: the ``wait`` of a wrapper is called by
    nobody, and what classes of cursors somebody else has made cannot be known. And not on an
    asynchronous connection, where it would be awaited.

    Args:
        driver: The connection.
        dbapi: The module it comes from.
    """
    return (
        issubclass(type(driver), dbapi.Connection)
        and "wait" not in vars(driver)
        and {driver.cursor_factory, driver.server_cursor_factory} <= _cursors_of(dbapi)
    )


@cache
def _cursors_of(dbapi: Dbapi) -> frozenset[object]:
    return frozenset(getattr(dbapi, name, None) for name in _CURSORS)


def as_sqlalchemy_raises_it(connection: Connection, error: BaseException) -> None:
    """Raise an error of an entry as SQLAlchemy does with those of its own statements.

    It wraps it, has it translated by whoever listens, and closes what is lost.
    """
    connection._handle_dbapi_exception(error, ENTER, None, None, None)  # noqa: SLF001 - events, wrapping and the end of a lost connection have no public entry


class EntryAhead:
    """An entry that was sent, and whose answer was not looked at.

    Args:
        driver: The connection.
        presentation: What is presented; told the transaction's stamp.
        dbapi: The module the connection comes from.
        answer: Waits for the answer.
        typed: The error of ours that one of the driver's means, if any.
    """

    def __init__(
        self,
        driver: Driver,
        presentation: Presentation,
        dbapi: Dbapi,
        answer: Generator[int, int, str],
        typed: Callable[[Exception], FencingError | None],
    ) -> None:
        # Not held: the driver's connection holds us, and so does the presentation.
        self._driver = weakref.ref(driver)
        self._presentation = weakref.ref(presentation)
        self._error: Any = dbapi.Error
        self._answer: Any = answer
        self._typed = typed
        self._is_known = False
        self._refusal: Exception | None = None
        self._factories = driver.cursor_factory, driver.server_cursor_factory
        self._ours = (
            _settling(driver.cursor_factory, "stream"),
            _settling(driver.server_cursor_factory, "execute"),
        )
        driver.cursor_factory, driver.server_cursor_factory = self._ours
        driver.wait = self._wait

    def settle(self, connection: Connection) -> None:
        """Wait for the answer.

        Args:
            connection: The transaction's.

        Raises:
            FencingUsageError: That was interrupted before, and the answer is lost.
            WriteRefusedError: Entry was refused; or whatever else it has failed with, as SQLAlchemy
                raises it.
        """
        try:
            self._receive_alone(self._driver())
        except self._error as error:
            as_sqlalchemy_raises_it(connection, error)
            raise

    def drop(self) -> bool:
        """Wait for the answer, whatever it is: the transaction is rolled back.

        Returns:
            Whether it can be: after an interrupt there may be answers that nobody reads.
        """
        driver: Driver = self._driver()
        with contextlib.suppress(self._error, FencingUsageError):
            self._receive_alone(driver)
        return not driver.closed

    def settle_for_cursor(self) -> None:
        """The same for whoever has a cursor of the driver's; raises what he would be told."""
        refusal: Exception | None = None
        try:
            self._receive_alone(self._driver())
        except self._error as error:
            refusal = error
        if refusal is not None:
            raise self._told(refusal)

    def _receive_alone(self, driver: Driver) -> None:
        with driver.lock:
            self._receive(driver)

    def _receive(self, driver: Driver) -> None:
        if self._is_known:
            return  # another thread was waiting, too
        try:
            stamp: str | None = type(driver).wait(driver, self._answer)
        except self._error:
            self._note("")
            raise
        finally:
            # Unless it was interrupted, and psycopg has not seen to the rest.
            if self._answer.gi_frame is None or driver.closed:
                self._restore(driver)
                if driver.pgconn.pipeline_status != _OFF:
                    driver.pgconn.finish()  # what comes would be taken for answers to others
        if stamp is None:
            raise FencingUsageError(
                "this transaction was interrupted while it presented its leases; roll it back, and "
                "begin another one"
            )
        self._note(stamp)

    def _restore(self, driver: Driver) -> None:
        """Give the connection back what is its own; what somebody has set meanwhile stays."""
        if driver.cursor_factory is self._ours[0]:
            driver.cursor_factory = self._factories[0]
        if driver.server_cursor_factory is self._ours[1]:
            driver.server_cursor_factory = self._factories[1]
        driver.__dict__.pop("wait", None)

    def _note(self, stamp: str) -> None:
        self._is_known = True
        presentation = self._presentation()
        if presentation is not None:
            presentation.stamp, presentation.ahead = stamp, None

    def _wait(self, generator: object, *args: object, **kwargs: object) -> object:
        """In place of the connection's; whoever calls it has its lock."""
        driver: Driver = self._driver()
        wait = type(driver).wait
        try:
            self._receive(driver)
        except self._error as error:
            self._refusal = error
            driver.wait = self._wait
        if self._refusal is None:
            return wait(driver, generator, *args, **kwargs)
        # psycopg keeps count of what it has begun, so it is let begin what cannot succeed any more.
        is_rollback = getattr(generator, "__name__", "") == _ROLLBACK
        try:
            done = wait(driver, generator, *args, **kwargs)
        except self._error:
            pass
        else:
            if is_rollback or driver.pgconn.transaction_status != _IDLE:
                if is_rollback:
                    self._restore(driver)
                return done
        self._restore(driver)
        raise self._told(self._refusal)

    def _told(self, error: Exception) -> Exception:
        typed = self._typed(error)
        if typed is None:
            return error
        typed.__cause__ = error
        return typed


@cache
def _settling(cursor: type, method: str) -> type:
    """A class of cursors one of whose methods waits for the answer first, if that was not done."""
    without: Any = getattr(cursor, method)

    def settled(self: Cursor, *args: object, **kwargs: object) -> object:
        ahead = getattr(self.connection.wait, "__self__", None)
        if isinstance(ahead, EntryAhead):
            ahead.settle_for_cursor()
        return without(self, *args, **kwargs)

    # By the same name, because people look at it.
    names = {"__module__": cursor.__module__, "__qualname__": cursor.__qualname__}
    return type(cursor.__name__, (cursor,), {"__slots__": (), method: settled, **names})

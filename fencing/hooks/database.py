"""One guarded database: the hooks on its engine, and the admissions beside it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine

from fencing.errors import FencingUsageError
from fencing.hooks.engine import EXPLICIT, INTERNAL, Hooks
from fencing.hooks.refusals import Refusal
from fencing.schema.names import ADMISSION_ISOLATION, ADMIT, MARK

if TYPE_CHECKING:
    from fencing.hooks.transaction import Presentations
    from fencing.lease import BaseLease

__all__ = ["EXPLICIT", "INTERNAL", "Database"]

_ADMIT = text(ADMIT)
_MARK = text(MARK)

# SQLAlchemy's names of the drivers whose errors and settings the hooks know.
_DRIVERS = ("psycopg", "psycopg_async")

# Kept on the engine itself: its pool's listeners refer to the engine, and so does what is made
# of that pool, so in a table of ours neither would ever be collected.
_ATTRIBUTE = "_fencing_database"
_lock = threading.Lock()
_all: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """A database that guards have been made for; one per root engine, however many guards.

    Admissions run on connections apart: a pool of their own with the engine's settings. In the
    engine's own pool, as many requests as it has connections could each hold a session and wait
    for one more to acquire with.

    Attributes:
        admissions: Engine over that pool, in AUTOCOMMIT: one statement is one transaction.
        name: The database's URL without its password.
    """

    def __init__(self, engine: Engine) -> None:
        self.name = engine.url.render_as_string(hide_password=True)
        self._root = Engine(engine.pool.recreate(), engine.dialect, engine.url)
        self.admissions: Engine = self._root.execution_options(
            isolation_level="AUTOCOMMIT", **{INTERNAL: True}
        )
        self._explicitly_begun: Engine = self._root.execution_options(
            isolation_level="READ COMMITTED", **{INTERNAL: True}
        )
        self._autocommit_suffices = True
        self._hooks = Hooks(self, self._ask_mark)

    @classmethod
    def of(cls, engine: Engine) -> Database:
        """The database of an engine; the first call installs the hooks.

        Args:
            engine: A synchronous engine (of an async one, its ``sync_engine``).

        Raises:
            ValueError: Its dialect or driver is not supported.
        """
        root = _root_of(engine)
        dialect = root.dialect
        if dialect.name != "postgresql" or dialect.driver not in _DRIVERS:
            raise ValueError(
                f"cannot guard an engine of {dialect.name}+{dialect.driver}: fencing needs "
                "PostgreSQL and the driver psycopg 3; use postgresql+psycopg://..."
            )
        with _lock:
            database: Database | None = vars(root).get(_ATTRIBUTE)
            if database is None:
                database = cls(root)
                database._hooks.listen(root)
                setattr(root, _ATTRIBUTE, database)
                _all.add(database)
        return database

    @classmethod
    def known(cls, engine: Engine) -> Database:
        """The database of an engine that a guard was made for.

        Raises:
            FencingUsageError: None was.
        """
        database: Database | None = vars(_root_of(engine)).get(_ATTRIBUTE)
        if database is None:
            raise FencingUsageError(
                f"no Guard has been made for the engine {engine.url!r}, so nothing would be "
                "presented on it; make one first: Guard(locks, engine)"
            )
        return database

    @property
    def presentations(self) -> Presentations:
        """What the transactions of the engine have presented."""
        return self._hooks.presentations

    def admit(self, lease: BaseLease, wait: float) -> None:
        """Commit a lease's token as its resource's high-water mark.

        One round trip. Asking again for a lease that has been admitted changes nothing, so a
        connection that had died in the pool is no reason to fail.

        Args:
            lease: The lease.
            wait: Longest wait for open transactions of other holders, in seconds.

        Raises:
            StaleFenceError: The mark is at or above the token; nothing was changed.
            LockNotAcquiredError: Open transactions block it; their pids are in ``blocked_by``.
            LockServiceError: The token is implausibly far above the mark.
            GuardNotInstalledError: The database has no schema ``fencing``.
        """
        try:
            self._admit(lease, wait)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
            self._admit(lease, wait)

    def _admit(self, lease: BaseLease, wait: float) -> None:
        values = {
            "resource": lease.resource,
            "token": lease.token,
            "holder": lease.holder,
            "owner": lease.owner,
            "wait_ms": min(max(0, int(wait * 1000)), 2**31 - 1),
        }
        try:
            if self._autocommit_suffices:
                with self.admissions.connect() as connection:
                    connection.execute(_ADMIT, values)
            else:
                with self._explicitly_begun.begin() as connection:
                    connection.execute(_ADMIT, values)
        except DBAPIError as error:
            refusal = Refusal.read(error.orig or error)
            if refusal.sqlstate == ADMISSION_ISOLATION and self._autocommit_suffices:
                # default_transaction_isolation of this role or database is another one, and a
                # single statement cannot choose its own: costs two more round trips.
                self._autocommit_suffices = False
                self._admit(lease, wait)
                return
            typed = refusal.as_error(lease.resource)
            if typed is None:
                raise
            raise typed from error

    def mark(self, resource: str) -> int | None:
        """The resource's high-water mark; ``None`` when nothing was ever admitted."""
        with self.admissions.connect() as connection:
            mark: int | None = connection.execute(_MARK, {"resource": resource}).scalar_one()
            return mark

    def close(self) -> None:
        """Close the idle connections of the admissions' pool."""
        self._root.dispose()

    async def aclose(self) -> None:
        """:meth:`close` for an async engine."""
        await AsyncEngine(self._root).dispose()

    def _ask_mark(self, resource: str) -> int | None:
        try:
            return self.mark(resource)
        except DBAPIError:
            return None


def _root_of(engine: Engine) -> Engine:
    # Engines made by execution_options() share pool, dialect and listeners with their root.
    root: Any = engine
    while (proxied := getattr(root, "_proxied", None)) is not None:
        root = proxied
    assert isinstance(root, Engine)  # noqa: S101 - narrows Any
    return root


def _forget_connections_in_child() -> None:
    # A connection shared with the parent process would interleave two conversations.
    for database in list(_all):
        database._root.dispose(close=False)  # noqa: SLF001


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_connections_in_child)

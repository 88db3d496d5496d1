"""One guarded database: the hooks on its engine, and the admissions beside it."""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

from sqlalchemy import Engine

from fencing.errors import FencingUsageError
from fencing.hooks.admission import Admissions
from fencing.hooks.engine import EXPLICIT, Hooks

if TYPE_CHECKING:
    from fencing.core.observed import Observations
    from fencing.hooks.transaction import Presentations

__all__ = ["EXPLICIT", "Database"]

# SQLAlchemy's names of the drivers whose errors and settings the hooks know.
_DRIVERS = ("psycopg", "psycopg_async", "asyncpg")

# Kept on the engine itself: its pool's listeners refer to the engine, and so does what is made
# of that pool, so in a table of ours neither would ever be collected.
_ATTRIBUTE = "_fencing_database"
_lock = threading.Lock()
_all: weakref.WeakSet[Database] = weakref.WeakSet()


class Database:
    """A database that guards have been made for; one per root engine, however many guards.

    Attributes:
        name: Host, port and name of the database, for messages.
        admissions: Its admissions, on connections apart.
    """

    def __init__(self, engine: Engine) -> None:
        # Of the URL only what can hold no secret: a password may be in its query, too.
        url = engine.url
        self.name = f"{url.host or 'localhost'}:{url.port or 5432}/{url.database or ''}"
        self.admissions = Admissions(engine)
        self._hooks = Hooks(self, self.admissions)

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
                "PostgreSQL and the driver psycopg 3, or asyncpg; use postgresql+psycopg://... or "
                "postgresql+asyncpg://..."
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
                "no Guard has been made for this engine, so nothing would be presented on it; make "
                "one first: Guard(locks, engine)"
            )
        return database

    def keep_receipts(self) -> None:
        """From now on every transaction under a lease leaves a receipt."""
        self._hooks.keeps_receipts = True

    @property
    def observations(self) -> Observations:
        """What guards in observe mode have reported to this process."""
        return self._hooks.observations

    @property
    def presentations(self) -> Presentations:
        """What the transactions of the engine have presented."""
        return self._hooks.presentations


def _root_of(engine: Engine) -> Engine:
    # Engines made by execution_options() share pool, dialect and listeners with their root.
    root: Any = engine
    while (proxied := getattr(root, "_proxied", None)) is not None:
        root = proxied
    assert isinstance(root, Engine)  # noqa: S101 - narrows Any
    return root


def _forget_in_child() -> None:
    # A connection shared with the parent process would interleave two conversations, its open
    # transactions are none of ours, and a lock may be held by a thread that is not here.
    global _lock  # noqa: PLW0603 - the child needs one of its own
    _lock = threading.Lock()
    for database in list(_all):
        database.admissions.forget()
        database.presentations.forget()
        database.observations.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)

"""``fence(session, lease)``: the leases of one session or connection, said explicitly."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, SessionTransaction, scoped_session

from fencing.errors import FencingUsageError
from fencing.hooks.ambient import Fence
from fencing.hooks.database import EXPLICIT, Database
from fencing.lease import BaseLease

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["fence"]

Target = (
    Session | Connection | AsyncSession | AsyncConnection
    | scoped_session[Any] | async_scoped_session[Any]
)  # fmt: skip


@contextmanager
def fence(session_or_connection: Target, *leases: BaseLease) -> Iterator[None]:
    """Present these leases in the transactions that a session or connection begins.

    The explicit form, for code that does not want ambience; a plain ``with`` for sync and async
    alike, since it does no I/O of its own. On one resource it beats an ambient lease. Its end
    does not end a transaction, nor does it release a lease.

    Args:
        session_or_connection: An SQLAlchemy session or connection, sync or async, on an engine
            that a guard was made for.
        leases: Admitted leases, at least one.

    Raises:
        FencingUsageError: A transaction has begun already, or no guard knows the engine.
        TypeError: An argument is of the wrong type.
    """
    if not leases:
        raise TypeError("fence() takes at least one lease")
    for lease in leases:
        if not isinstance(lease, BaseLease):
            raise TypeError(f"fence() takes leases, not {type(lease).__name__}")
    target = _sync_target(session_or_connection)
    if target.in_transaction():
        raise FencingUsageError(
            f"fence() on a {type(target).__name__} that has begun a transaction already: a lease "
            "is presented in a transaction's first statement, so commit or roll back first"
        )
    entry = Fence(leases)
    restore = (
        _fence_connection(target, entry)
        if isinstance(target, Connection)
        else _fence_session(target, entry)
    )
    try:
        yield
    finally:
        entry.closed = True
        restore()


def _sync_target(target: object) -> Session | Connection:
    if isinstance(target, scoped_session | async_scoped_session):
        target = target()
    if isinstance(target, AsyncSession):
        target = target.sync_session
    elif isinstance(target, AsyncConnection):
        target = target.sync_connection
        if target is None:
            raise FencingUsageError("fence() on an AsyncConnection that was not started: await it")
    if not isinstance(target, Session | Connection):
        raise TypeError(
            "fence() takes an SQLAlchemy session or connection, sync or async, "
            f"not {type(target).__name__}"
        )
    return target


def _fence_connection(connection: Connection, entry: Fence) -> Callable[[], None]:
    Database.known(connection.engine)
    before: tuple[Fence, ...] = connection.get_execution_options().get(EXPLICIT, ())
    connection.execution_options(**{EXPLICIT: (*before, entry)})

    def restore() -> None:
        if not connection.closed:
            # Only what we have put there: fences may be closed in another order than opened.
            now: tuple[Fence, ...] = connection.get_execution_options().get(EXPLICIT, ())
            connection.execution_options(**{EXPLICIT: tuple(f for f in now if f is not entry)})

    return restore


def _fence_session(session: Session, entry: Fence) -> Callable[[], None]:
    return _FencedBinds(session, entry).restore


class _FencedBinds:
    """Hands a session engines that carry the fence.

    A session asks ``get_bind`` for every transaction's engine. ``session.connection(...)`` would
    do I/O and cover one transaction only, and ``session.execution_options`` reaches connections
    from SQLAlchemy 2.1 on only.
    """

    def __init__(self, session: Session, entry: Fence) -> None:
        self._session = session
        self._entry = entry
        # Kept, since a session tells binds apart by identity.
        self._fenced: dict[Engine, Engine] = {}
        self._unfinished: SessionTransaction | None = None
        self._had_own = "get_bind" in vars(session)
        self._original = session.get_bind
        session.get_bind = self._mine = self._get_bind  # type: ignore[method-assign]  # on this instance alone

    def _get_bind(self, *args: Any, **kwargs: Any) -> Engine | Connection:  # noqa: ANN401 - passed on
        bind = self._original(*args, **kwargs)
        if self._entry.closed:
            # A transaction that has outlived the block goes on with the engine it began with;
            # another one would be a second transaction beside it.
            unfinished = self._unfinished
            if unfinished is not None and self._session.get_transaction() is unfinished:
                return self._fenced.get(bind, bind) if isinstance(bind, Engine) else bind
            self._remove()
            return bind
        if isinstance(bind, Connection):
            raise FencingUsageError(
                "fence() on a session that is bound to a connection: fence the connection, before "
                "its transaction begins"
            )
        if bind not in self._fenced:
            Database.known(bind)
            before: tuple[Fence, ...] = bind.get_execution_options().get(EXPLICIT, ())
            self._fenced[bind] = bind.execution_options(**{EXPLICIT: (*before, self._entry)})
        return self._fenced[bind]

    def restore(self) -> None:
        """End of the block."""
        self._unfinished = self._session.get_transaction()
        if self._unfinished is None:
            self._remove()

    def _remove(self) -> None:
        # Only what we have put there: fences may be closed in another order than opened.
        if vars(self._session).get("get_bind") is not self._mine:
            return
        if self._had_own:
            self._session.get_bind = self._original  # type: ignore[method-assign]  # its own is put back
        else:
            del self._session.get_bind

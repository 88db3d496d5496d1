"""Where a guard's admissions get their connections from: a conninfo, a pool, or a function."""

from __future__ import annotations

import inspect
import math
import os
import sys
import weakref
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from psycopg.conninfo import conninfo_to_dict

from fencing.clock import now
from fencing.core.slots import NoSlotError, Slots
from fencing.postgres.statements import is_idle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

__all__ = ["AsyncConnections", "AsyncSource", "Connections", "Source", "check_source"]

_MAX_IDLE = 4
"""How many connections are kept open between admissions."""


class Pool(Protocol):
    """What is needed of a ``psycopg_pool.ConnectionPool``."""

    def connection(
        self, timeout: float | None = None
    ) -> AbstractContextManager[psycopg.Connection[Any]]:
        """A connection, for a block."""


class AsyncPool(Protocol):
    """What is needed of a ``psycopg_pool.AsyncConnectionPool``."""

    def connection(
        self, timeout: float | None = None
    ) -> AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]:
        """A connection, for a block."""


if TYPE_CHECKING:
    Source = str | Pool | Callable[[], AbstractContextManager[psycopg.Connection[Any]]]
    AsyncSource = (
        str
        | AsyncPool
        | Callable[
            [],
            AbstractAsyncContextManager[psycopg.AsyncConnection[Any]]
            | Awaitable[psycopg.AsyncConnection[Any]],
        ]
    )


def check_source(source: object, guard: str) -> str:
    """Check where connections come from, and name the database, in messages.

    Raises:
        TypeError: It is none of what a guard takes.
        ValueError: A conninfo that cannot be read.
    """
    if isinstance(source, str):
        if source.startswith(("postgresql+", "postgres+")):
            scheme, _, _ = source.partition(":")
            raise ValueError(
                f"{guard} takes an address of libpq's, not one of SQLAlchemy's that begins with "
                f"{scheme}://; write postgresql://..."
            )
        try:
            facts = conninfo_to_dict(source)
        except psycopg.ProgrammingError:
            # What libpq says repeats parts of it, maybe of the password.
            raise ValueError(f"{guard} was given an address that libpq cannot read") from None
        host = facts.get("host") or facts.get("hostaddr") or "localhost"
        return f"{host}:{facts.get('port') or 5432}/{facts.get('dbname') or ''}"
    if isinstance(source, psycopg.Connection | psycopg.AsyncConnection):
        raise TypeError(
            f"{guard} takes an address, a pool, or a function that connects, not a connection: "
            "admissions run beside the transactions of their callers"
        )
    if callable(getattr(source, "connection", None)):
        return f"the database of {getattr(source, 'name', None) or type(source).__name__}"
    if callable(source):
        return f"the database of {getattr(source, '__qualname__', type(source).__name__)}()"
    raise TypeError(
        f"{guard} takes an address, a pool, or a function that connects, not "
        f"{type(source).__name__}"
    )


class BaseConnections:
    """What both kinds share: idle connections, and permits for all."""

    def __init__(self, source: object, capacity: int) -> None:
        self.slots = Slots(capacity if isinstance(source, str) else math.inf)
        self._idle: list[Any] = []
        self._left: list[Any] = []
        _all.add(self)

    def forget(self) -> None:
        """Leave the connections to the parent process, in a forked child."""
        # Kept, since closing them would say goodbye to the server in the parent's name.
        self._left += self._idle
        self._idle = []
        self.slots = Slots(self.slots.capacity)

    def _keep(self, connection: Any) -> bool:  # noqa: ANN401 - sync or async
        """Keep it for the next one, or say that it is to be closed."""
        if connection.closed or not is_idle(connection) or len(self._idle) >= _MAX_IDLE:
            return False
        self._idle.append(connection)
        return True


_all: weakref.WeakSet[BaseConnections] = weakref.WeakSet()


def _forget_in_child() -> None:
    for connections in list(_all):
        connections.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class Connections(BaseConnections):
    """Connections for admissions.

    Args:
        source: Where they come from.
        capacity: How many may be open at a time, of those made from an address.
    """

    def __init__(self, source: Source, capacity: int) -> None:
        super().__init__(source, capacity)
        self._source = source

    @contextmanager
    def connection(self, until: float, *, fresh: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """A connection, for a block.

        Args:
            until: How long to wait for it: a moment of :func:`fencing.clock.now`, in seconds.
            fresh: Whether it must be a new one.

        Raises:
            NoSlotError: None was to be had in time.
        """
        source = self._source
        if not isinstance(source, str):
            with _in_time(), _borrowed(source, until) as connection:
                yield connection
            return
        if fresh:
            self.close()
        own: psycopg.Connection[Any] | None = None
        try:
            if self._idle and not fresh:
                own = self._idle.pop()
            if own is None:
                with _in_time():
                    own = psycopg.connect(source, **_options(source, until))
            yield own
        finally:
            if own is not None and not self._keep(own):
                own.close()

    def close(self) -> None:
        """Close the idle ones."""
        while self._idle:
            self._idle.pop().close()


class AsyncConnections(BaseConnections):
    """:class:`Connections` for asyncio."""

    def __init__(self, source: AsyncSource, capacity: int) -> None:
        super().__init__(source, capacity)
        self._source = source

    @asynccontextmanager
    async def connection(
        self, until: float, *, fresh: bool = False
    ) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        """See :meth:`Connections.connection`."""
        source = self._source
        if not isinstance(source, str):
            with _in_time():
                async with _borrowed_async(source, until) as connection:
                    yield connection
            return
        if fresh:
            await self.aclose()
        own: psycopg.AsyncConnection[Any] | None = None
        if self._idle and not fresh:
            own = self._idle.pop()
        if own is None:
            with _in_time():
                own = await psycopg.AsyncConnection.connect(source, **_options(source, until))
        try:
            yield own
        finally:
            if not self._keep(own):
                await own.close()

    async def aclose(self) -> None:
        """See :meth:`Connections.close`."""
        while self._idle:
            await self._idle.pop().close()


def _options(conninfo: str, until: float) -> dict[str, Any]:
    # Poolers in transaction mode know nothing of prepared statements.
    options: dict[str, Any] = {"autocommit": True, "prepare_threshold": None}
    if "connect_timeout" not in conninfo_to_dict(conninfo):
        # Less than two seconds is none at all to libpq.
        options["connect_timeout"] = max(2, math.ceil(until - now()))
    return options


def _borrowed(source: Any, until: float) -> AbstractContextManager[psycopg.Connection[Any]]:  # noqa: ANN401 - a pool, or what makes connections
    borrowed: AbstractContextManager[psycopg.Connection[Any]] = (
        source.connection(timeout=max(0.001, until - now()))
        if hasattr(source, "connection")
        else source()
    )
    return borrowed


@asynccontextmanager
async def _borrowed_async(
    source: Any,  # noqa: ANN401 - as above
    until: float,
) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    borrowed = (
        source.connection(timeout=max(0.001, until - now()))
        if hasattr(source, "connection")
        else source()
    )
    if inspect.isawaitable(borrowed):  # AsyncConnection.connect() is a coroutine
        borrowed = await borrowed
    async with borrowed as connection:
        yield connection


@contextmanager
def _in_time() -> Iterator[None]:
    try:
        yield
    except psycopg.OperationalError as error:
        pool = sys.modules.get("psycopg_pool")
        late = (psycopg.errors.ConnectionTimeout, *((pool.PoolTimeout,) if pool else ()))
        if not isinstance(error, late):
            raise
        raise NoSlotError from error

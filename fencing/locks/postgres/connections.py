"""Connections of a lock service's own: a few, made when they are needed, each for one request."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import weakref
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ConnStatus, TransactionStatus

from fencing.clock import now
from fencing.core.slots import NoSlotError, Slots
from fencing.locks.postgres.wire import Statement, exchange, exchange_async, is_alive
from fencing.schema import names

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["AsyncConnections", "Connections", "Link"]

_MEET = Statement(f"{names.IDENTITY}, pg_catalog.pg_backend_pid()")
_COMMIT = b"COMMIT"
_ENCODING = b"UTF8"
_ENCODE = b"SET client_encoding = 'UTF8'"


class Link:
    """One connection, and what is known of where it leads.

    Attributes:
        pgconn: libpq's connection.
        database: Which database it is, as ``fencing.identity()`` tells it.
        pooled: Whether a pooler stands in between, which may give every request another session.
        prepared: The names of what is prepared on it; ``None``: nothing can be.
        begins: Whether a transaction has to be begun by hand, since the role's default is not
            READ COMMITTED, or read-only.
    """

    def __init__(self, connection: Any) -> None:  # noqa: ANN401 - sync or async
        self._connection = connection  # which closes it when it is collected
        self.pgconn = connection.pgconn
        self.database = ""
        self.pooled = False
        self.begins = False
        self.prepared: set[str] | None = set()

    def met(self, rows: list[tuple[str | None, ...]]) -> None:
        """Note what was answered to the first question."""
        self.database = rows[0][0] or ""
        # A pooler tells its clients process numbers of its own.
        self.pooled = rows[0][1] != str(self.pgconn.backend_pid)
        if self.pooled:
            self.prepared = None

    def preparations(self) -> Iterator[bytes]:
        """What is to be executed before anything else.

        A function that connects may have left a transaction open, within which no lock would be
        granted that others see; and names are sent in UTF-8, whatever the role's default is.
        """
        if not self.usable:
            yield _COMMIT
        if self.pgconn.parameter_status(b"client_encoding") != _ENCODING:
            yield _ENCODE

    @property
    def usable(self) -> bool:
        """Whether it can be used for another request."""
        return bool(self.pgconn.transaction_status == TransactionStatus.IDLE)

    @property
    def is_lost(self) -> bool:
        """Whether the server, or the way to it, has ended it."""
        return bool(self.pgconn.status != ConnStatus.OK)

    def close(self) -> None:
        """Close it, whatever it is doing."""
        self.pgconn.finish()


class _Connections:
    """What both kinds have in common.

    Args:
        source: An address as libpq reads it, or a function that connects.
        capacity: How many may be open at a time, besides the one to listen on.
    """

    def __init__(self, source: Any, capacity: int) -> None:  # noqa: ANN401 - a Source of either kind
        self._source = source
        self._capacity = capacity
        self._left: list[Link] = []
        self._idle: list[Link] = []
        self._answered = 0  # how many requests were; threads may have missed some in counting
        self._renew_slots()
        _all.add(self)

    def _renew_slots(self) -> None:
        self.slots = Slots(self._capacity)
        # Of those that wait for others' transactions, who are to leave connections for renewals.
        self.waiting = Slots(max(1, self._capacity // 2))

    def forget(self) -> None:
        """Leave the connections to the parent process, in a forked child."""
        # Kept, since closing them would say goodbye to the server in the parent's name.
        self._left += self._idle
        self._idle = []
        self._renew_slots()

    def close_idle(self) -> None:
        """Close those that nobody uses.

        Where one was lost, or answers no more, a firewall or a failed server may have dropped them
        all without a word; who tries again is to connect anew, not to try each of them in turn.
        """
        while self._idle:
            self._idle.pop().close()

    def _take(self) -> Link | None:
        while self._idle:
            link = self._idle.pop()
            if is_alive(link.pgconn):
                return link
            link.close()
        return None

    def _keep(self, link: Link) -> None:
        if link.usable:
            self._answered += 1
            self._idle.append(link)
            return
        if link.is_lost:
            self.close_idle()
        link.close()

    @contextmanager
    def _noting_others(self) -> Iterator[None]:
        """Say of who gets no permit whether others were answered meanwhile."""
        answered = self._answered
        try:
            yield
        except NoSlotError as error:
            error.busy = self._answered != answered
            raise

    def _options(self, end: float) -> dict[str, Any]:
        options: dict[str, Any] = {"autocommit": True, "client_encoding": _ENCODING.decode()}
        given = conninfo_to_dict(self._source)
        if "connect_timeout" not in given:
            # Less than two seconds is none at all to libpq; who waits does not wait so long.
            options["connect_timeout"] = max(2, math.ceil(end - now()))
        if "application_name" not in given:
            options["fallback_application_name"] = "fencing locks"
        return options


_all: weakref.WeakSet[_Connections] = weakref.WeakSet()


def _forget_in_child() -> None:
    for connections in list(_all):
        connections.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)


class _Connecting:
    """A connection being made, in a thread that nobody has to wait for.

    libpq resolves names and waits for servers without heeding anybody's deadline.
    """

    def __init__(self) -> None:
        self._done = threading.Event()
        self._lock = threading.Lock()
        self._given_up = False
        self._connection: psycopg.Connection[Any] | None = None
        self._failure: BaseException | None = None

    def run(self, connect: Any) -> None:  # noqa: ANN401 - a function that connects
        """Connect; in the thread."""
        connection = failure = None
        try:
            connection = connect()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            failure = error
        with self._lock:
            self._connection, self._failure = connection, failure
            if self._given_up and connection is not None:
                connection.close()
        self._done.set()

    def result(self, end: float) -> psycopg.Connection[Any]:
        """The connection; TimeoutError if it is not there by a moment of the clock."""
        try:
            self._done.wait(max(0.0, end - now()))
        finally:
            with self._lock:
                self._given_up = not self._done.is_set()
                late = self._given_up and self._connection is None and self._failure is None
        if late:
            raise TimeoutError
        if self._failure is not None:
            raise self._failure
        assert self._connection is not None  # noqa: S101 - one of both
        return self._connection


class Connections(_Connections):
    """Connections for threads."""

    @contextmanager
    def link(self, end: float, *, waits: bool = False) -> Iterator[Link]:
        """A connection, for one request.

        Args:
            end: How long to wait for it: a moment of :func:`fencing.clock.now`, in seconds.
            waits: Whether the request may wait for others' transactions.

        Raises:
            NoSlotError: All were in use.
            TimeoutError: The server was not reached in time.
            psycopg.Error: The server refused.
        """
        with (
            self._noting_others(),
            self.waiting.slot(end) if waits else nullcontext(),
            self.slots.slot(end),
        ):
            link = self._take() or self.connect(end)
            try:
                yield link
            except TimeoutError:
                self.close_idle()
                raise
            finally:
                self._keep(link)

    def connect(self, end: float) -> Link:
        """A new connection; see :meth:`link`."""
        attempt = _Connecting()
        threading.Thread(
            target=attempt.run, args=(lambda: self._connect(end),), daemon=True
        ).start()
        link = Link(attempt.result(end))
        try:
            for preparation in link.preparations():
                exchange(link.pgconn, preparation, [], end)
            link.met(exchange(link.pgconn, _MEET, [], end))
        except BaseException:
            link.close()
            raise
        return link

    def _connect(self, end: float) -> psycopg.Connection[Any]:
        if isinstance(self._source, str):
            return psycopg.connect(self._source, **self._options(end))
        made: psycopg.Connection[Any] = self._source()
        return made


class AsyncConnections(_Connections):
    """:class:`Connections` for asyncio; those of an event loop that is over are closed."""

    def __init__(self, source: Any, capacity: int) -> None:  # noqa: ANN401 - as its base has it
        super().__init__(source, capacity)
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def link(self, end: float, *, waits: bool = False) -> AsyncIterator[Link]:
        """See :meth:`Connections.link`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None and self._loop.is_closed():
                self._renew_slots()
            self._loop = loop
        with self._noting_others():
            async with (
                self.waiting.aslot(end) if waits else nullcontext(),
                self.slots.aslot(end),
            ):
                link = self._take() or await self.connect(end)
                try:
                    yield link
                except TimeoutError:
                    self.close_idle()
                    raise
                finally:
                    self._keep(link)

    async def connect(self, end: float) -> Link:
        """See :meth:`Connections.connect`."""
        task = asyncio.current_task()
        before = task.cancelling() if task else 0
        async with asyncio.timeout(max(0.0, end - now())):
            if isinstance(self._source, str):
                connection = await psycopg.AsyncConnection.connect(
                    self._source, **self._options(end)
                )
            else:
                connection = await self._source()
        link = Link(connection)
        try:
            if task and task.cancelling() > before:
                # psycopg connects by asyncio.wait_for, which may swallow a cancellation; see
                # fencing.cancelling.
                raise asyncio.CancelledError  # noqa: TRY301 - closed as for any other
            for preparation in link.preparations():
                await exchange_async(link.pgconn, preparation, [], end)
            link.met(await exchange_async(link.pgconn, _MEET, [], end))
        except BaseException:
            link.close()
            raise
        return link

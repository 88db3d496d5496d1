"""Talks to etcd's JSON gateway by HTTP: the sync and the async way, side by side.

A request of asyncio is never cancelled: httpcore, by which httpx connects, would count the
connection as in use for ever. It runs in a task of its own, which ends with the request's time.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.clock import now
from fencing.locks.asking import Trouble
from fencing.locks.etcd import bounded
from fencing.locks.etcd.answers import Reply, is_stale_token, reply_to
from fencing.locks.etcd.troubles import HTTP_ERRORS, is_event, is_news
from fencing.locks.etcd.way import Way

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    import httpx

    from fencing.locks.etcd.address import Address
    from fencing.locks.etcd.requests import Body

__all__ = ["AsyncTransport", "Transport"]

T = TypeVar("T")

_ASKING: dict[str, int | None] = {"max_connections": 32, "max_keepalive_connections": 32}
"""Requests that have to wait for a connection are sooner done than each with a new one."""

_WATCHING: dict[str, int | None] = {"max_connections": None, "max_keepalive_connections": 0}
"""Each watch has a connection of its own, which ends with it."""


class Transport(Way):
    """Asks an etcd; threads may share it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._clients: _Clients | None = None
        self._lock = threading.RLock()  # a signal handler may ask, too
        _transports.add(self)

    def forget(self) -> None:
        """Begin with connections of one's own: those that a child has are its parent's."""
        _inherited.append(self._clients)
        self._clients = None
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the connections; another request opens them again.

        Whoever asks at this moment closes them when he is done: they cannot be closed under him.
        """
        with self._lock:
            clients, self._clients = self._clients, None
            if clients is None:
                return
            clients.given_up = True
            in_use = clients.users > 0
        if not in_use:
            clients.close()

    def ask(self, path: str, body: Body, end: float) -> Reply:
        """Ask; return the answer.

        Args:
            path: What for: the path behind ``/v3/``.
            body: The request.
            end: When the answer must be there (:func:`fencing.clock.now`, seconds).

        Raises:
            Trouble: There is none, or it says that nothing was done.
        """
        content, answered = self.content(body), self.answered
        try:
            asked_at, status, answer = self._ask_as_somebody(path, content, end)
            self.answered += 1
            return reply_to(status, answer, asked_at=asked_at, at=now())
        except HTTP_ERRORS as error:
            raise self.trouble(error, answered) from error
        except Trouble as trouble:
            if trouble.passing:
                self.note_trouble()
            raise

    def _ask_as_somebody(self, path: str, content: bytes, end: float) -> tuple[float, int, bytes]:
        if self.must_authenticate:
            self.note_token(*self._post("auth/authenticate", self.credentials, end))
        asked_at = now()
        status, answer = self._post(path, content, end)
        if self.address.user and is_stale_token(status, answer):
            self._token = ""  # with one that it does not know etcd may refuse even to authenticate
            self.note_token(*self._post("auth/authenticate", self.credentials, end))
            asked_at = now()
            status, answer = self._post(path, content, end)
        return asked_at, status, answer

    def _post(self, path: str, content: bytes, end: float) -> tuple[int, bytes]:
        with self._opened() as clients, bounded.ending_at(end) as extensions:
            response = clients.asks.post(
                self.url(path), content=content, headers=self.headers(), extensions=extensions
            )
            return response.status_code, response.content

    def watch(self, body: Body, end: float) -> bool:
        """Wait until something is told that is watched for; whether it could be watched.

        Args:
            body: The request.
            end: When to return in any case (:func:`fencing.clock.now`, seconds).
        """
        try:
            with (
                self._opened() as clients,
                bounded.ending_at(end) as extensions,
                clients.watches.stream(
                    "POST",
                    self.url("watch"),
                    content=self.content(body),
                    headers=self.headers(),
                    extensions=extensions,
                ) as response,
            ):
                if response.status_code != 200:  # noqa: PLR2004 - of HTTP
                    return False
                for line in response.iter_lines():
                    if is_news(line):
                        return is_event(line)
                    if now() >= end:
                        break
        except HTTP_ERRORS:
            pass
        return now() >= end

    @contextmanager
    def _opened(self) -> Iterator[_Clients]:
        """What asks and what watches, which are not closed meanwhile."""
        with self._lock:  # of two pairs one would be lost, with its connections
            if self._clients is None:
                self._clients = _Clients(self.address)
            clients = self._clients
            clients.users += 1
        try:
            yield clients
        finally:
            with self._lock:
                clients.users -= 1
                to_close = clients.given_up and clients.users == 0
            if to_close:
                clients.close()


class _Clients:
    """What asks and what watches, and how many do so at this moment."""

    def __init__(self, address: Address) -> None:
        self.asks = bounded.client(address, **_ASKING)
        self.watches = bounded.client(address, **_WATCHING)
        self.users = 0
        self.given_up = False

    def close(self) -> None:
        self.asks.close()
        self.watches.close()


class AsyncTransport(Way):
    """:class:`Transport` for asyncio; after an event loop has ended it begins anew in the next."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._begin(None)
        _transports.add(self)

    def _begin(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self._loop = loop
        self._client: httpx.AsyncClient | None = None
        self._running: set[asyncio.Task[Any]] = set()  # of a task one has to hold a reference
        self._watching: set[asyncio.Task[bool]] = set()

    def forget(self) -> None:
        """See :meth:`Transport.forget`."""
        # Kept, because a connection that is finalized is taken off its event loop's selector,
        # which a forked child shares with its parent.
        _inherited.append((self._client, self._running))
        self._begin(None)

    async def aclose(self) -> None:
        """See :meth:`Transport.close`; requests that are on their way are answered before."""
        client, self._client = self._client, None
        if self._loop is not asyncio.get_running_loop():
            return
        try:
            for task in self._watching:
                task.cancel()
            if self._running:
                await asyncio.wait(list(self._running))
        finally:
            if client is not None:
                await client.aclose()

    async def ask(self, path: str, body: Body, end: float) -> Reply:
        """See :meth:`Transport.ask`."""
        content, answered = self.content(body), self.answered
        try:
            asked_at, status, answer = await self._ask_as_somebody(path, content, end)
            self.answered += 1
            return reply_to(status, answer, asked_at=asked_at, at=now())
        except HTTP_ERRORS as error:
            raise self.trouble(error, answered) from error
        except Trouble as trouble:
            if trouble.passing:
                self.note_trouble()
            raise

    async def _ask_as_somebody(
        self, path: str, content: bytes, end: float
    ) -> tuple[float, int, bytes]:
        if self.must_authenticate:
            self.note_token(*await self._post("auth/authenticate", self.credentials, end))
        asked_at = now()
        status, answer = await self._post(path, content, end)
        if self.address.user and is_stale_token(status, answer):
            self._token = ""  # with one that it does not know etcd may refuse even to authenticate
            self.note_token(*await self._post("auth/authenticate", self.credentials, end))
            asked_at = now()
            status, answer = await self._post(path, content, end)
        return asked_at, status, answer

    async def _post(self, path: str, content: bytes, end: float) -> tuple[int, bytes]:
        client = self._open()

        async def post() -> tuple[int, bytes]:
            with bounded.ending_at(end) as extensions:
                response = await client.post(
                    self.url(path), content=content, headers=self.headers(), extensions=extensions
                )
                return response.status_code, response.content

        return await self._uncancelled(post())

    async def _uncancelled(self, work: Coroutine[Any, Any, T]) -> T:
        """Await work that goes on even if nobody wants it any more."""
        task = self._started(work)
        await asyncio.wait({task})
        if task.cancelled():  # as all tasks are at the end of the loop
            raise asyncio.CancelledError
        return task.result()

    def _started(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of this work, which is held until it is done."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(_look_at)
        return task

    async def watch(self, body: Body, end: float) -> bool:
        """See :meth:`Transport.watch`."""
        self._open()
        task, watching = self._started(self._watch(body, end)), self._watching
        watching.add(task)
        task.add_done_callback(watching.discard)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:  # nothing else: a loop that is closed takes no cancellation
            if not task.cancelling():
                task.cancel()
            raise
        return now() >= end if task.cancelled() else task.result()

    async def _watch(self, body: Body, end: float) -> bool:
        # A client of its own: it is left at any moment, and all of it is closed with the client.
        client = bounded.async_client(self.address, **_WATCHING)
        try:
            with bounded.ending_at(end) as extensions:
                async with client.stream(
                    "POST",
                    self.url("watch"),
                    content=self.content(body),
                    headers=self.headers(),
                    extensions=extensions,
                ) as response:
                    if response.status_code != 200:  # noqa: PLR2004 - of HTTP
                        return False
                    async for line in response.aiter_lines():
                        if is_news(line):
                            return is_event(line)
                        if now() >= end:
                            break
        except HTTP_ERRORS:
            pass
        finally:
            await client.aclose()
        return now() >= end

    def _open(self) -> httpx.AsyncClient:
        """What asks."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._begin(loop)
        if self._client is None:
            self._client = bounded.async_client(self.address, **_ASKING)
        return self._client


def _look_at(task: asyncio.Task[Any]) -> None:
    """See that nobody complains that nobody has looked at its error."""
    if not task.cancelled():
        task.exception()


_inherited: list[object] = []
_transports: weakref.WeakSet[Transport | AsyncTransport] = weakref.WeakSet()


def _forget_the_parent_s() -> None:
    for transport in list(_transports):
        transport.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s)

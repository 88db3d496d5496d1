"""Talks to etcd's JSON gateway by HTTP: the sync and the async way, side by side.

httpx has a time-out for each part of a request. Here every part is given what is left of the
request's time, so that the whole of it ends in time.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any

import httpx

from fencing.clock import now
from fencing.locks.asking import Trouble
from fencing.locks.etcd.answers import Reply, is_stale_token, message_in, reply_to

if TYPE_CHECKING:
    from fencing.locks.etcd.address import Address
    from fencing.locks.etcd.requests import Body

__all__ = ["HTTP_ERRORS", "AsyncTransport", "Transport"]

HTTP_ERRORS = (httpx.HTTPError, httpx.StreamError, httpx.InvalidURL, OSError)
"""What can come out of a request because of etcd or the way to it."""


def _options(address: Address, **limits: int | None) -> dict[str, Any]:
    """What a client of httpx is made with."""
    return {
        "verify": address.tls or False,
        # A lock service does not go through whatever proxy a machine has for the rest of the world.
        "trust_env": False,
        "limits": httpx.Limits(keepalive_expiry=30.0, **limits),
    }


_ASKING: dict[str, int | None] = {"max_connections": 32, "max_keepalive_connections": 32}
"""Requests that have to wait for a connection are sooner done than each with a new one."""

_WATCHING: dict[str, int | None] = {"max_connections": None, "max_keepalive_connections": 0}
"""Each watch has a connection of its own, which ends with it."""

_HEADERS = {"Content-Type": "application/json"}

_AT_LEAST = 0.001  # seconds: a time-out of zero would be none


class _Left(dict[str, float]):
    """The time-outs of a request's parts: what is left of the time of all of it."""

    def __init__(self, end: float) -> None:
        super().__init__()
        self._end = end

    def get(self, key: str, default: Any = None) -> float:  # noqa: ANN401, ARG002 - one answer to every question
        return max(_AT_LEAST, self._end - now())


class _Way:
    """The way to one etcd: which of its members is asked, and as whom."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._at = 0
        self._token = ""

    def url(self, path: str) -> str:
        endpoints = self.address.endpoints
        return f"{endpoints[self._at % len(endpoints)]}/v3/{path}"

    def headers(self) -> dict[str, str]:
        return {**_HEADERS, "Authorization": self._token} if self._token else _HEADERS

    def content(self, body: Body) -> bytes:
        return json.dumps(body, separators=(",", ":")).encode()

    @property
    def credentials(self) -> bytes:
        return self.content({"name": self.address.user, "password": self.address.password})

    @property
    def must_authenticate(self) -> bool:
        return bool(self.address.user) and not self._token

    def note_token(self, status: int, content: bytes) -> None:
        """We have said who we are; keep the token that was given to us, or raise."""
        at = now()
        reply = reply_to(status, content, asked_at=at, at=at)
        token = reply.body.get("token")
        if not isinstance(token, str) or not token:
            raise Trouble("etcd was told who asks, and gave no token", passing=False, at=at)
        self._token = token

    def note_trouble(self) -> None:
        """This member has not answered as it should; the next one is asked from now on."""
        self._at += 1


class Transport(_Way):
    """Asks an etcd; threads may share it."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._clients: tuple[httpx.Client, httpx.Client] | None = None
        self._lock = threading.RLock()  # a signal handler may ask, too
        _transports.add(self)

    def forget(self) -> None:
        """Begin with connections of one's own: those that a child has are its parent's."""
        _inherited.append(self._clients)
        self._clients = None
        self._lock = threading.RLock()

    def close(self) -> None:
        """Close the connections; another request opens them again."""
        clients, self._clients = self._clients, None
        for client in clients or ():
            client.close()

    def ask(self, path: str, body: Body, end: float) -> Reply:
        """Ask; return the answer.

        Args:
            path: What for: the path behind ``/v3/``.
            body: The request.
            end: When the answer must be there (:func:`fencing.clock.now`, seconds).

        Raises:
            Trouble: There is none, or it says that nothing was done.
        """
        content = self.content(body)
        try:
            asked_at, status, answer = self._ask_as_somebody(path, content, end)
            return reply_to(status, answer, asked_at=asked_at, at=now())
        except HTTP_ERRORS as error:
            self.note_trouble()
            raise trouble_of(error, at=now()) from error
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
        response = self._open()[0].post(
            self.url(path),
            content=content,
            headers=self.headers(),
            extensions={"timeout": _Left(end)},
        )
        return response.status_code, response.content

    def watch(self, body: Body, end: float) -> bool:
        """Wait until something is told that is watched for; whether it could be watched.

        Args:
            body: The request.
            end: When to return in any case (:func:`fencing.clock.now`, seconds).
        """
        try:
            with self._open()[1].stream(
                "POST",
                self.url("watch"),
                content=self.content(body),
                headers=self.headers(),
                extensions={"timeout": _Left(end)},
            ) as response:
                if response.status_code != 200:  # noqa: PLR2004 - of HTTP
                    return False
                for line in response.iter_lines():
                    if _is_news(line):
                        return _is_event(line)
                    if now() >= end:
                        break
        except HTTP_ERRORS:
            return now() >= end
        return now() >= end

    def _open(self) -> tuple[httpx.Client, httpx.Client]:
        """What asks, and what watches."""
        with self._lock:  # of two pairs one would be lost, with its connections
            if self._clients is None:
                asks, watches = (_options(self.address, **each) for each in (_ASKING, _WATCHING))
                self._clients = httpx.Client(**asks), httpx.Client(**watches)
            return self._clients


class AsyncTransport(_Way):
    """:class:`Transport` for asyncio; after an event loop has ended it begins anew in the next."""

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._clients: tuple[httpx.AsyncClient, httpx.AsyncClient] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        _transports.add(self)

    def forget(self) -> None:
        """See :meth:`Transport.forget`."""
        # Kept, because a connection that is finalized is taken off its event loop's selector,
        # which a forked child shares with its parent.
        _inherited.append(self._clients)
        self._clients = self._loop = None

    async def aclose(self) -> None:
        """See :meth:`Transport.close`."""
        clients, self._clients = self._clients, None
        if self._loop is asyncio.get_running_loop():
            for client in clients or ():
                await client.aclose()

    async def ask(self, path: str, body: Body, end: float) -> Reply:
        """See :meth:`Transport.ask`."""
        content = self.content(body)
        try:
            asked_at, status, answer = await self._ask_as_somebody(path, content, end)
            return reply_to(status, answer, asked_at=asked_at, at=now())
        except HTTP_ERRORS as error:
            self.note_trouble()
            raise trouble_of(error, at=now()) from error
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
        response = await self._open()[0].post(
            self.url(path),
            content=content,
            headers=self.headers(),
            extensions={"timeout": _Left(end)},
        )
        return response.status_code, response.content

    async def watch(self, body: Body, end: float) -> bool:
        """See :meth:`Transport.watch`."""
        try:
            async with self._open()[1].stream(
                "POST",
                self.url("watch"),
                content=self.content(body),
                headers=self.headers(),
                extensions={"timeout": _Left(end)},
            ) as response:
                if response.status_code != 200:  # noqa: PLR2004 - of HTTP
                    return False
                async for line in response.aiter_lines():
                    if _is_news(line):
                        return _is_event(line)
                    if now() >= end:
                        break
        except HTTP_ERRORS:
            return now() >= end
        return now() >= end

    def _open(self) -> tuple[httpx.AsyncClient, httpx.AsyncClient]:
        """See :meth:`Transport._open`."""
        loop = asyncio.get_running_loop()
        if self._clients is None or self._loop is not loop:
            self._loop = loop
            asks, watches = (_options(self.address, **each) for each in (_ASKING, _WATCHING))
            self._clients = httpx.AsyncClient(**asks), httpx.AsyncClient(**watches)
        return self._clients


def _is_news(line: str) -> bool:
    """Whether a watch tells more than that it has begun."""
    return _is_event(line) or '"canceled":true' in line or bool(message_in(line.encode()))


def _is_event(line: str) -> bool:
    return '"events"' in line


def trouble_of(error: Exception, *, at: float) -> Trouble:
    """Say what an error of httpx means.

    Args:
        error: One of `HTTP_ERRORS`.
        at: When it happened (:func:`fencing.clock.now`, seconds).
    """
    told = f"{type(error).__name__}: {error}".rstrip(": ")
    passing = True
    if isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout):
        help_ = "etcd did not answer in time: see if it or the network is overloaded"
    elif "CERTIFICATE" in told.upper() or "[SSL" in told:
        passing = False
        help_ = (
            "there is no trusted connection to etcd by TLS: see that its certificate is for the "
            "host's name and its authority known (ca), and that we show one if it wants one "
            "(certificate, key)"
        )
    else:
        help_ = "etcd cannot be reached: see that it runs and its address is right"
    return Trouble(f"{help_} ({told})", passing=passing, at=at)


_inherited: list[object] = []
_transports: weakref.WeakSet[Transport | AsyncTransport] = weakref.WeakSet()


def _forget_the_parent_s() -> None:
    for transport in list(_transports):
        transport.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s)

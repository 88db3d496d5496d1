# ruff: noqa: ANN401 - redis-py leaves untyped what connections are made of
"""Connections of redis-py that keep a call's deadline, mixed into whatever class a client uses."""

from __future__ import annotations

import math
import select
from contextvars import ContextVar
from functools import cache
from typing import Any

import redis

from fencing.clock import now

__all__ = ["async_bounded", "bounded", "call_end"]

call_end: ContextVar[float] = ContextVar("fencing_call_end", default=math.inf)
"""When the call that this thread is in must be over: a moment of `fencing.clock.now`, in s."""


def _watch(connected: Any) -> Any:
    """What tells whether a socket can be read, for less than a look into it; None without poll."""
    if not hasattr(select, "poll"):  # Windows
        return None
    watch = select.poll()
    watch.register(connected, select.POLLIN)
    return watch


class _Bounded:
    """Mixed into a connection class: connecting, sending and reading do not outlast the call.

    Attributes:
        until: When the call must be over that has this connection to itself; otherwise, and in
            what connecting does besides, `call_end` says it.
    """

    socket_timeout: float | None
    socket_connect_timeout: float | None
    until = math.inf
    _watch: Any = None
    _sock: Any  # redis-py has no public way to the socket

    def connect(self) -> None:
        if self._sock is not None:
            return
        # The settings are the connection's own until it is back in the pool, so they may be
        # other ones while it connects.
        own = self.socket_timeout, self.socket_connect_timeout
        self.socket_timeout, self.socket_connect_timeout = map(self._left, own)
        try:
            super().connect()  # type: ignore[misc]
        finally:
            self.socket_timeout, self.socket_connect_timeout = own
        self._watch = _watch(self._sock)

    def is_open(self) -> bool:
        """Whether it is connected, as far as we know."""
        return self._sock is not None

    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody asked for, such as the end of the connection."""
        if self._sock is None or (self._watch is not None and not self._watch.poll(0)):
            return True
        try:
            return not self.can_read()  # type: ignore[attr-defined]
        except (redis.RedisError, OSError):
            return False

    def ask(self, data: bytes) -> Any:
        """Send a packed request; return its answer."""
        # Only once: what is read after it arrives in one piece.
        self._limit()
        super().send_packed_command((data,))  # type: ignore[misc]
        return super().read_response(disable_decoding=True)  # type: ignore[misc]

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        self._limit()
        super().send_packed_command(*args, **kwargs)  # type: ignore[misc]

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._limit()
            return super().read_response(*args, **kwargs)  # type: ignore[misc]
        except redis.ResponseError:
            raise
        except BaseException:
            # Also where the connection class does not do it: an answer that is read by the
            # next call would be taken for its own.
            self.disconnect()
            raise

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        super().disconnect(*args, **kwargs)  # type: ignore[misc]

    def _limit(self) -> None:
        # redis-py has no time-out for a single call in its versions before 7.
        if self._sock is not None:
            self._sock.settimeout(self._left(self.socket_timeout))

    def _left(self, own: float | None) -> float | None:
        """The lesser of a time-out and what is left to the call, in seconds; None for neither."""
        end = self.until
        if end == math.inf:
            end = call_end.get()
            if end == math.inf:
                return own
        left = end - now()
        if left <= 0:
            raise redis.TimeoutError("the call's time is up")
        return left if own is None or left < own else own


class _AsyncBounded:
    """Mixed into an asyncio connection class whose caller bounds a call by `asyncio.timeout`.

    Without time-outs of its own once it is connected: in asyncio each is a timer, and before
    Python 3.12 a task.

    Attributes:
        longest: The time-out it was to have: for one answer, in seconds; None for none.
    """

    socket_timeout: float | None
    is_connected: bool
    _watch: Any = None
    _reader: Any
    _writer: Any

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.longest = self.socket_timeout

    async def connect(self) -> None:
        if self.is_connected:
            return
        self.socket_timeout = self.longest
        await super().connect()  # type: ignore[misc]
        self.socket_timeout = None
        # Under TLS there may be something to read that is no answer, and the loop finds out.
        tls = self._writer.get_extra_info("ssl_object") is not None
        self._watch = None if tls else _watch(self._writer.get_extra_info("socket").fileno())

    def is_open(self) -> bool:
        """Whether it is connected, as far as we know."""
        return self.is_connected

    def is_quiet(self) -> bool:
        """Whether nothing has come that nobody asked for, such as the end of the connection."""
        if not self.is_connected:
            return True
        if self._reader.at_eof() or self._writer.transport.is_closing():
            return False
        # What the event loop has not come to yet.
        return self._watch is None or not self._watch.poll(0)

    async def ask(self, data: bytes) -> Any:
        """Send a packed request; return its answer."""
        await self.send_packed_command((data,))  # type: ignore[attr-defined]
        return await self.read_response(disable_decoding=True)  # type: ignore[attr-defined]


@cache
def bounded(connection_class: type) -> type:
    """The class with connections that do not outlast the call."""
    return type(f"Bounded{connection_class.__name__}", (_Bounded, connection_class), {})


@cache
def async_bounded(connection_class: type) -> type:
    """The asyncio class with connections for callers who bound the call."""
    return type(f"Bounded{connection_class.__name__}", (_AsyncBounded, connection_class), {})

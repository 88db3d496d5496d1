# ruff: noqa: ANN401 - redis-py leaves untyped what connections are made of
"""Connections of redis-py that keep a call's deadline, mixed into whatever class a client uses."""

from __future__ import annotations

import asyncio
import math
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING, Any

import redis
from redis.exceptions import AskError, ClusterDownError, MovedError, TryAgainError

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.locks.redis.conversing import Conversation
from fencing.locks.redis.resp import MISSING, Answers
from fencing.locks.redis.sockets import bounded_socket, watch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fencing.locks.redis.sockets import BoundedSocket

__all__ = ["async_bounded", "bounded", "call_end"]

call_end: ContextVar[float] = ContextVar("fencing_call_end", default=math.inf)
"""When the call that this thread is in must be over: a moment of `fencing.clock.now`, in s."""


FRESH_SECONDS = 0.005
"""How long after an answer a connection is not looked at, in seconds."""

_ENDLESS = 24 * 60 * 60.0
"""A time-out that is longer is none, in seconds."""

_CLOSED = "Redis has closed the connection"


def _lost(error: OSError) -> redis.RedisError:
    """The error of redis-py for an error of a socket."""
    if isinstance(error, TimeoutError):
        return redis.TimeoutError("no answer in time")
    return redis.ConnectionError(f"the connection has failed: {error}")


_OF_CLUSTERS: dict[str, type[redis.ResponseError]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "MOVED": MovedError,
    "TRYAGAIN": TryAgainError,
}


def _errors_as(parse_error: Callable[[str], Exception]) -> Callable[[str], Exception]:
    """What makes errors of texts, those of a cluster included, which not every parser knows."""

    def error_of(text: str) -> Exception:
        code, _, rest = text.partition(" ")
        kind = _OF_CLUSTERS.get(code)
        return parse_error(text) if kind is None else kind(rest)

    return error_of


class _Bounded:
    """Mixed into a connection class: connecting, sending and reading do not outlast the call.

    Attributes:
        until: When the call must be over that has this connection to itself; otherwise, and in
            what connecting does besides, `call_end` says it.
        is_wanted: Whether to keep it when it is given back: its service was not closed meanwhile.
    """

    socket_timeout: float | None
    socket_connect_timeout: float | None
    until = math.inf
    is_wanted = True
    health_check_interval: float
    _answers: Answers
    _socket: BoundedSocket
    _patience: float  # its own time-out, in seconds
    _has_just_sent = False
    _answered_at = -math.inf
    _seconds: float | None  # how long sending might take, and what is sent first then be read
    _parser: Any
    _sock: Any  # redis-py has no public way to the socket

    def connect(self) -> None:
        if self.is_open():
            return
        # The settings are the connection's own until it is back in the pool, so they may be
        # other ones while it connects.
        own = self.socket_timeout, self.socket_connect_timeout
        self.socket_timeout, self.socket_connect_timeout = map(self._left, own)
        try:
            super().connect()  # type: ignore[misc]  # a mixin: only `bounded` adds a base that has it
            self._socket = bounded_socket(self._sock)
            self._answers = Answers(_errors_as(self._parser.parse_error))
            self._patience = _ENDLESS if own[0] is None else min(own[0], _ENDLESS)
        except BaseException:
            # Also when a signal's exception comes in between: half connected is not connected.
            self.disconnect()
            raise
        finally:
            self.socket_timeout, self.socket_connect_timeout = own

    def is_open(self) -> bool:
        """Whether it is connected, as far as we know."""
        return self._sock is not None

    def is_ready(self) -> bool:
        """Whether it is wanted and connected, and nothing has come since the last answer.

        Of one that has just answered it is believed: to look takes as long as to send.
        """
        return (
            self._sock is not None
            and self.is_wanted
            and not self._answers.unread
            and (now() - self._answered_at < FRESH_SECONDS or self._socket.is_quiet())
        )

    def is_quiet(self) -> bool:
        """Whether nothing has come since the last answer, such as the connection's end."""
        if self._sock is None:
            return True
        if self._answers.unread:
            return False
        if self._socket.is_quiet():
            return True
        try:
            return not self.can_read()  # type: ignore[attr-defined]  # likewise
        except (redis.RedisError, OSError):
            return False

    def send(self, data: bytes) -> None:
        """Send packed requests."""
        if self.health_check_interval:
            self.check_health()  # type: ignore[attr-defined]  # likewise
        left = self.until - now()
        self._seconds = left if 0 < left < self._patience else self._left(self._patience)
        try:
            self._socket.send(data, self._seconds)
        except OSError as error:
            raise _lost(error) from error
        self._has_just_sent = True

    def skip(self) -> None:
        """Leave out the answer that comes next, of one line."""
        self._answers.skips += 1

    def answer(self) -> Any:
        """The answer to the next of the requests that were sent; an error as an exception."""
        answers = self._answers
        while True:
            if self._has_just_sent:  # nothing has come yet, and how much time is left is known
                self._has_just_sent = False
            elif (answer := answers.next()) is not MISSING:
                self._answered_at = now()
                return answer
            else:
                self._seconds = self._left(self._patience)
            try:
                came = self._socket.receive(self._seconds)
            except OSError as error:
                raise _lost(error) from error
            if not came:
                raise redis.ConnectionError(_CLOSED)
            if (answer := answers.take(came)) is not MISSING:
                self._answered_at = now()
                return answer

    def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
        self._limit()
        super().send_packed_command(*args, **kwargs)  # type: ignore[misc]  # likewise

    def read_response(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._limit()
            return super().read_response(*args, **kwargs)  # type: ignore[misc]  # likewise
        except redis.ResponseError:
            raise
        except BaseException:
            # Also where the connection class does not do it: an answer that is read by the
            # next call would be taken for its own.
            self.disconnect()
            raise

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        super().disconnect(*args, **kwargs)  # type: ignore[misc]  # likewise
        self.is_wanted = True  # when it is connected again

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
    """`_Bounded` for asyncio; but whoever connects bounds that, by `asyncio.timeout`.

    Attributes:
        until: When the call must be over that has this connection to itself.
        is_wanted: See `_Bounded`.
    """

    is_wanted = True
    socket_timeout: float | None
    health_check_interval: float
    is_connected: bool
    _answers: Answers
    _conversation: Conversation
    _answered_at = -math.inf
    _watch: Any = None
    _parser: Any
    _writer: Any

    @property
    def until(self) -> float:
        """See above."""
        return self._conversation.until

    @until.setter
    def until(self, end: float) -> None:
        self._conversation.until = end

    async def connect(self) -> None:
        if self.is_connected:
            return
        try:
            await heeding(super().connect())  # type: ignore[misc]  # a mixin: only `async_bounded` adds a base that has it
            self._answers = Answers(_errors_as(self._parser.parse_error))
            self._conversation = Conversation(self._writer.transport, self._answers)
            # Under TLS there may be something to read that is no answer, and the loop finds out.
            tls = self._writer.get_extra_info("ssl_object") is not None
            self._watch = None if tls else watch(self._writer.get_extra_info("socket").fileno())
        except BaseException:
            # redis-py leaves it open where it is cancelled, or its time is up, while it greets.
            await self.disconnect(nowait=True)
            raise

    def is_open(self) -> bool:
        """Whether it is connected, as far as we know."""
        return self.is_connected

    def is_ready(self) -> bool:
        """See `_Bounded.is_ready`."""
        return self.is_connected and self.is_wanted and self._has_nothing_unread()

    def is_quiet(self) -> bool:
        """Whether nothing has come since the last answer, such as the connection's end."""
        return not self.is_connected or self._has_nothing_unread()

    def _has_nothing_unread(self) -> bool:
        if self._answers.unread or self._conversation.is_over():
            return False
        # What the event loop has not come to yet; as in `_Bounded.is_ready`.
        is_fresh = now() - self._answered_at < FRESH_SECONDS
        return is_fresh or self._watch is None or not self._watch.poll(0)

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.is_wanted = True
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]  # likewise

    def limit(self, end: float) -> float:
        """Have a call be over by ``end``, and by the client's time-out; return when that is."""
        at = now()
        if at >= end:
            raise redis.TimeoutError("the call's time is up")
        longest = self.socket_timeout  # for one answer
        until = end if longest is None or end - at < longest else at + longest
        self._conversation.until = until
        return until

    def ask(self, data: bytes) -> Awaitable[Any]:
        """Send packed requests, and return the answer to the first of them; see `answer`."""
        if self.health_check_interval:
            return self._ask_in_health(data)
        self._conversation.say(data)
        return self.answer()

    async def _ask_in_health(self, data: bytes) -> Any:
        self._conversation.pause()
        async with asyncio.timeout(max(0.0, self.until - now())):
            await heeding(self.check_health())  # type: ignore[attr-defined]  # likewise
        self._conversation.say(data)
        return await self.answer()

    def skip(self) -> None:
        """See `_Bounded.skip`."""
        self._answers.skips += 1

    async def answer(self) -> Any:
        """See `_Bounded.answer`."""
        answer = self._answers.next() if self._answers.unread else MISSING
        if answer is MISSING:
            try:
                answer = await self._conversation.answer()
            except OSError as error:
                raise _lost(error) from error
        self._answered_at = now()
        return answer


@cache
def bounded(connection_class: type) -> type:
    """The class with connections that do not outlast the call."""
    if issubclass(connection_class, _Bounded):
        return connection_class
    return type(f"Bounded{connection_class.__name__}", (_Bounded, connection_class), {})


@cache
def async_bounded(connection_class: type) -> type:
    """The asyncio class with connections for callers who bound the call."""
    return type(f"Bounded{connection_class.__name__}", (_AsyncBounded, connection_class), {})

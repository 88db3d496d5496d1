"""Listening to one channel on one node of Redis: in a thread, or in a task.

One connection, made like the client's others, for all waiters of a lock service that the node
concerns. It lives as long as somebody waits, and for ``HEARTBEAT_SECONDS`` of silence more. When it
ends, for whatever reason, its audience is told so; :mod:`fencing.locks.redis.listening` makes
another.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import redis

from fencing.clock import now
from fencing.locks.redis.trouble import REDIS_ERRORS
from fencing.locks.redis.waiting import LISTEN_SECONDS, Audience, Box

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

__all__ = ["AsyncSubscriber", "Subscriber"]

HEARTBEAT_SECONDS = 5.0
"""After how long a silence the connection is tested, in seconds; given up after as long again."""

CHUNK = 65536

BoxT = TypeVar("BoxT", bound=Box)


class _Lines:
    """What comes on a subscribed connection, line by line.

    All that is said on a channel of ours fits on a line, so that nothing else of the protocol needs
    to be understood, in either of its versions. What is told to nobody is dropped.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + chunk).split(b"\r\n")
        return lines


class _Subscriber(Generic[BoxT]):
    """What both kinds have in common.

    Args:
        channel: What to listen to.
        stray: Called with a holder that was handed a lock, and that nobody waits as.

    Attributes:
        audience: Who is told what is said.
        began_at: When it was made (:func:`fencing.clock.now`, seconds).
        failure: What it ended by, if that was no loss of the connection.
    """

    def __init__(self, channel: str, stray: Callable[[str], None]) -> None:
        self.audience: Audience[BoxT] = Audience()
        self.began_at = now()
        self.failure: BaseException | None = None
        self._channel = channel
        self._stray = stray

    def _hear(self, lines: list[bytes]) -> None:
        for line in lines:
            if (holder := self.audience.hear(line)) is not None:
                self._stray(holder)

    @property
    def has_listened(self) -> bool:
        """Whether Redis has ever confirmed it."""
        return self.audience.has_listened

    @property
    def is_refused(self) -> bool:
        """Whether Redis does not let us listen."""
        return isinstance(self.failure, redis.ResponseError)


def _check(first: bytes) -> None:
    if first.startswith(b"-"):
        kind = redis.exceptions.NoPermissionError if b"NOPERM" in first else redis.ResponseError
        raise kind(first[1:].decode(errors="replace"))


class Subscriber(_Subscriber[BoxT]):
    """Listens in a daemon thread.

    Args:
        connect: Makes a connection to the node, connected by a moment of the clock.
        channel: What to listen to.
        lock: Held when the audience changes.
        stray: Called with a holder that was handed a lock, and that nobody waits as.
    """

    def __init__(
        self,
        connect: Callable[[float], Any],
        channel: str,
        lock: threading.Lock,
        stray: Callable[[str], None],
    ) -> None:
        super().__init__(channel, stray)
        self._connect = connect
        self._lock = lock
        self._connection: Any = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="fencing waiting", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._is_stopped = True
        with contextlib.suppress(AttributeError, OSError):  # not connected, or not any more
            # It wakes the thread, which closes the socket: nobody else may, while it reads.
            self._connection._sock.shutdown(socket.SHUT_RDWR)  # noqa: SLF001 - no public way
        if self._thread is not threading.current_thread():
            self._thread.join(LISTEN_SECONDS)

    def _run(self) -> None:
        try:
            self._connection = self._connect(now() + LISTEN_SECONDS)
            self._listen()
        except REDIS_ERRORS as error:
            self.failure = error
        finally:
            with self._lock:
                self.audience.end()
            if self._connection is not None:
                self._connection.disconnect()

    def _listen(self) -> None:
        self._connection.send_command("SUBSCRIBE", self._channel, check_health=False)
        for lines in self._chunks():
            if not self.audience.listens:
                _check(lines[0])
                with self._lock:
                    self.audience.begin()
            self._hear(lines)

    def _chunks(self) -> Iterator[list[bytes]]:
        received = self._connection._sock  # noqa: SLF001 - as above
        lines, is_tested = _Lines(), False
        while not self._is_stopped:
            received.settimeout(HEARTBEAT_SECONDS)
            try:
                chunk = received.recv(CHUNK)
            except TimeoutError:
                if is_tested or self._nobody_waits():
                    return
                self._connection.send_command("PING", check_health=False)
                is_tested = True
                continue
            if not chunk:
                return
            is_tested = False
            if complete := lines.feed(chunk):
                yield complete

    def _nobody_waits(self) -> bool:
        with self._lock:
            if not self.audience:
                self.audience.end()
            return self.audience.over


class AsyncSubscriber(_Subscriber[BoxT]):
    """`Subscriber` for asyncio: listens in a task."""

    def __init__(
        self, connect: Callable[[float], Any], channel: str, stray: Callable[[str], None]
    ) -> None:
        super().__init__(channel, stray)
        self._connect = connect
        self._connection: Any = None
        self.loop = asyncio.get_running_loop()
        self._task = self.loop.create_task(self._run(), name="fencing waiting")

    async def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self.audience.end()  # which a task that had not begun yet could not tell

    async def _run(self) -> None:
        try:
            self._connection = await self._connect(now() + LISTEN_SECONDS)
            await self._listen()
        except REDIS_ERRORS as error:
            self.failure = error
        finally:
            self.audience.end()
            if self._connection is not None:
                await self._connection.disconnect(nowait=True)

    async def _listen(self) -> None:
        await self._connection.send_command("SUBSCRIBE", self._channel, check_health=False)
        async for lines in self._chunks():
            if not self.audience.listens:
                _check(lines[0])
                self.audience.begin()
            self._hear(lines)

    async def _chunks(self) -> AsyncIterator[list[bytes]]:
        received = self._connection._reader  # noqa: SLF001 - as above
        lines, is_tested = _Lines(), False
        while True:
            try:
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    chunk = await received.read(CHUNK)
            except TimeoutError:
                if is_tested or not self.audience:
                    return
                await self._connection.send_command("PING", check_health=False)
                is_tested = True
                continue
            if not chunk:
                return
            is_tested = False
            if complete := lines.feed(chunk):
                yield complete

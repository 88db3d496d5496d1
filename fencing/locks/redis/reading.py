"""What comes on a subscribed connection: taken from its socket, or from its transport, as lines.

In threads whoever waits reads for himself, see :mod:`fencing.locks.redis.subscribing`: so that a
message does not have to pass from a thread that listens to the one that waits, a socket is waited
for by one, and read by whoever holds the lock. In asyncio the event loop calls what is here as soon
as it has something, without a task between.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Bell", "Between", "Lines", "Told", "Transport", "Wire", "readable"]

# Without a type: a socket, or with TLS one of ssl's, which a Python without OpenSSL does not have;
# and a transport, which says of asyncio's protocol of streams only that it is some protocol.
Socket: TypeAlias = Any
Transport: TypeAlias = Any

CHUNK = 4096
"""How much is read at once, in bytes: some forty messages."""

_NOT_YET: tuple[type[OSError], ...] = (BlockingIOError,)
with contextlib.suppress(ImportError):  # a Python without OpenSSL
    import ssl

    _NOT_YET = (BlockingIOError, ssl.SSLWantReadError)


class Lines:
    """What has come, line by line.

    All that is said on a channel of ours fits on a line, so that nothing else of the protocol needs
    to be understood, in either of its versions.

    Attributes:
        come: Lines that nobody has heard yet.
    """

    def __init__(self) -> None:
        self.come: deque[bytes] = deque()
        self._rest = b""

    def feed(self, chunk: bytes) -> None:
        """Add what was read."""
        *lines, self._rest = (self._rest + chunk).split(b"\r\n")
        self.come.extend(lines)


class Wire:
    """The socket of a connection that is subscribed; it does not block from now on.

    Whoever waits may do so beside others; all else is done by one at a time, for TLS is not made
    for more.

    Args:
        connected: The socket.
    """

    def __init__(self, connected: Socket) -> None:
        connected.settimeout(0)
        self.lines = Lines()
        self._socket = connected
        # Under TLS there may be something to be read that the system does not know of any more.
        self._pending: Callable[[], int] | None = getattr(connected, "pending", None)
        self._has_more = self._pending is not None and self._pending() > 0
        self._is_in_step = True

    def wait(self, seconds: float, *others: Bell) -> None:
        """Wait until there is something to be read, here or on others."""
        if not self._has_more:
            readable(seconds, self._socket, *others)

    def receive(self) -> bool:
        """Take what has come, if anything has; return whether more may come.

        Whoever is interrupted in here may have lost part of a line, and with what comes after it
        that could be a line which nobody has said: then nothing is taken any more.

        Raises:
            OSError: The connection has failed.
        """
        if not self._is_in_step:
            return False
        self._is_in_step = False
        try:
            chunk = self._socket.recv(CHUNK)
        except _NOT_YET:
            self._has_more = False
            self._is_in_step = True
            return True
        if not chunk:
            return False
        self.lines.feed(chunk)
        if self._pending is not None:
            self._has_more = self._pending() > 0
        self._is_in_step = True
        return True

    def send(self, data: bytes) -> None:
        """Send a few bytes.

        Raises:
            OSError: The connection has failed, or nobody has taken what was sent for long.
        """
        self._socket.sendall(data)

    def shut_down(self) -> None:
        """Wake whoever waits; nothing comes any more."""
        # The system's end only: ssl's own throws its state away, and whoever comes to read or to
        # send after it would do so without TLS.
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class Bell:
    """Wakes a thread that waits for sockets."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.settimeout(0)
        self._far.settimeout(0)

    def fileno(self) -> int:
        """What to wait for."""
        return self._near.fileno()

    def ring(self) -> None:
        """Wake it, now or when it waits next."""
        with contextlib.suppress(OSError):  # it has been rung often, or nobody listens any more
            self._far.send(b"!")

    def silence(self) -> None:
        """It has been heard."""
        with contextlib.suppress(OSError):
            self._near.recv(CHUNK)

    def close(self) -> None:
        """It is not rung any more."""
        self._near.close()
        self._far.close()

    def __del__(self) -> None:
        # Whoever has made it may be interrupted before there is a thread that closes it.
        with contextlib.suppress(AttributeError):
            self.close()


def readable(seconds: float, *sockets: Socket | Bell) -> None:
    """Wait until one of some sockets can be read, or for so many seconds."""
    if not hasattr(select, "poll"):  # Windows
        select.select(sockets, (), (), seconds)
        return
    watch = select.poll()
    for each in sockets:
        watch.register(each, select.POLLIN)
    watch.poll(seconds * 1000)


class Between(asyncio.Protocol, ABC):
    """Stands between a transport and the protocol that redis-py waits by, and closes it by.

    Args:
        transport: Of a connection of redis-py.
    """

    def __init__(self, transport: Transport) -> None:
        self._before = transport.get_protocol()
        transport.set_protocol(self)

    def eof_received(self) -> bool | None:
        """See `asyncio.Protocol`."""
        self._end(None)
        stays: bool | None = self._before.eof_received()
        return stays

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._end(exc)
        self._before.connection_lost(exc)

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._before.pause_writing()

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._before.resume_writing()

    @abstractmethod
    def _end(self, error: Exception | None) -> None:
        """Nothing comes any more; to be called as often as one likes."""


class Told(Between):
    """Tells what comes on a transport.

    Args:
        transport: As in `Between`.
        hear: Called with what has come; what it raises is the end.

    Attributes:
        over: Done when nothing comes any more.
    """

    def __init__(self, transport: Transport, hear: Callable[[Lines], None]) -> None:
        self._lines = Lines()
        self._hear = hear
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        super().__init__(transport)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if self.over.done():
            return
        try:
            self._lines.feed(data)
            self._hear(self._lines)
        except Exception as error:  # noqa: BLE001 - asyncio would only log it; the task that waits raises it
            self.over.set_exception(error)

    def _end(self, _error: Exception | None) -> None:
        if not self.over.done():
            self.over.set_result(None)

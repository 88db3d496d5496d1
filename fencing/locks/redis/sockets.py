"""A connected socket of which each operation is over by a moment: the ways there are.

Python's own time-out on a socket costs a call of the operating system to set it, and another one
before each operation, to see whether it would wait. A lock is two short requests, whose time is the
caller's, so this counts.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
from typing import Protocol

from fencing.clock import now

__all__ = ["READ_BYTES", "BoundedSocket", "bounded_socket", "watch"]

READ_BYTES = 65536
"""How much is read at once; most answers are a hundred bytes."""


class BoundedSocket(Protocol):
    """What sends and receives within a time, in seconds, of less than a week; ``None``: within any.

    An operation whose time is up raises ``TimeoutError``; one that fails, another ``OSError``.
    """

    def is_quiet(self) -> bool:
        """Whether nothing has come, nor the connection's end; if not, something may have."""

    def send(self, data: bytes, seconds: float | None) -> None:
        """Send all of the data."""

    def receive(self, seconds: float | None) -> bytes:
        """What has come, as soon as something has; nothing when the connection has ended."""


def bounded_socket(connected: socket.socket) -> BoundedSocket:
    """The fastest way that there is for a socket, which then belongs to it."""
    is_plain = isinstance(connected, socket.socket) and not isinstance(connected, ssl.SSLSocket)
    if is_plain and hasattr(select, "poll"):  # as Windows has not
        return _PolledSocket(connected)
    return _TimedSocket(connected)


class _PolledSocket:
    """A socket that is asked whether it would wait where it has to be asked, and nowhere else."""

    def __init__(self, connected: socket.socket) -> None:
        connected.settimeout(None)  # so that Python does not ask in its turn
        self._socket = connected
        self._readable = _poll(connected, select.POLLIN)

    def is_quiet(self) -> bool:
        return not self._readable.poll(0)

    def send(self, data: bytes, seconds: float | None) -> None:
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent < len(data):  # there is nearly always room for a request
            self._send_rest(data[sent:], seconds)

    def receive(self, seconds: float | None) -> bytes:
        while True:
            # In milliseconds, and rounded up.
            if not self._readable.poll(None if seconds is None else seconds * 1000):
                raise TimeoutError
            try:
                return self._socket.recv(READ_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:  # somebody else's wake-up
                continue

    def _send_rest(self, data: bytes, seconds: float | None) -> None:
        end = math.inf if seconds is None else now() + seconds
        writable = _poll(self._socket, select.POLLOUT)
        while data:
            left = None if seconds is None else max(0.0, end - now())
            if not writable.poll(None if left is None else left * 1000):
                raise TimeoutError
            with contextlib.suppress(BlockingIOError):
                data = data[self._socket.send(data, socket.MSG_DONTWAIT) :]


class _TimedSocket:
    """A socket with Python's own time-out, for TLS and where nothing else is to be had."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._readable = watch(connected)

    def is_quiet(self) -> bool:
        return self._readable is not None and not self._readable.poll(0)

    def send(self, data: bytes, seconds: float | None) -> None:
        self._socket.settimeout(seconds)
        self._socket.sendall(data)

    def receive(self, seconds: float | None) -> bytes:
        self._socket.settimeout(seconds)
        return self._socket.recv(READ_BYTES)


def watch(connected: socket.socket | int) -> select.poll | None:
    """What tells whether a socket can be read, for less than a look into it; None without poll."""
    return _poll(connected, select.POLLIN) if hasattr(select, "poll") else None


def _poll(connected: socket.socket | int, event: int) -> select.poll:
    poll = select.poll()
    poll.register(connected, event)
    return poll

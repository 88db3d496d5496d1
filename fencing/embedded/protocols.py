"""Reads what clients of our servers send, as far as it takes to count it."""

from __future__ import annotations

import re
import struct
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "HttpRequests",
    "PostgresRequests",
    "RedisRequests",
    "Request",
    "Requests",
    "ZooKeeperRequests",
]

Request: TypeAlias = tuple[bytes, ...]

# Sent in place of a start-up message: wishes for encryption, to which another start-up follows.
ENCRYPTION_REQUESTS = (80877103, 80877104)


class Requests(ABC):
    """Reads what one client sends.

    Attributes:
        unfinished: The beginning of a request whose end has not come yet.
    """

    def __init__(self) -> None:
        self.unfinished = b""

    @property
    def whole(self) -> bool:
        """Whether the server can act on all that has come: nothing waits for what is to follow."""
        return not self.unfinished

    @abstractmethod
    def feed(self, data: bytes) -> Iterator[Request]:
        """Yield the requests that are complete now."""

    @classmethod
    def is_heartbeat(cls, answer: bytes) -> bool:  # noqa: ARG003 - most protocols have none
        """Whether what a server says is an answer to a heartbeat, and nothing else."""
        return False


class RedisRequests(Requests):
    """Commands: arrays of bulk strings."""

    def feed(self, data: bytes) -> Iterator[Request]:
        """Yield the commands that are complete now."""
        self.unfinished += data
        while (parsed := self._parse()) is not None:
            words, self.unfinished = parsed
            yield words

    def _parse(self) -> tuple[Request, bytes] | None:
        head, separator, rest = self.unfinished.partition(b"\r\n")
        if not separator:
            return None
        if not head.startswith(b"*"):
            return tuple(head.split()), rest
        words = []
        for _ in range(int(head[1:])):
            size, separator, rest = rest.partition(b"\r\n")
            if not separator or len(rest) < int(size[1:]) + 2:
                return None
            words.append(rest[: int(size[1:])])
            rest = rest[int(size[1:]) + 2 :]
        return tuple(words), rest


class ZooKeeperRequests(Requests):
    """Requests: the number of what is asked; neither the greeting nor pings."""

    PING = -2
    SIZE_BYTES = 4
    BARE_ANSWER = 20  # bytes: the size, and a header without a body

    def __init__(self) -> None:
        super().__init__()
        self._greeted = False

    def feed(self, data: bytes) -> Iterator[Request]:
        """Yield the requests that are complete now."""
        self.unfinished += data
        while len(self.unfinished) >= self.SIZE_BYTES:
            (size,) = struct.unpack_from("!I", self.unfinished)
            if len(self.unfinished) < 4 + size:
                return
            message, self.unfinished = self.unfinished[4 : 4 + size], self.unfinished[4 + size :]
            if self._greeted:
                number, kind = struct.unpack_from("!iI", message)
                if number != self.PING:
                    yield (b"%d" % kind,)
            self._greeted = True

    @classmethod
    def is_heartbeat(cls, answer: bytes) -> bool:
        """Whether what a server says is an answer to a ping, and nothing else."""
        bare = len(answer) == cls.BARE_ANSWER
        return bare and struct.unpack_from("!i", answer, cls.SIZE_BYTES) == (cls.PING,)


class PostgresRequests(Requests):
    """Frontend messages: their type and, for ``Q`` (query), ``P`` (parse), ``B`` (bind), the SQL.

    That of a bind is the statement's, which was parsed earlier, perhaps much earlier.

    A round trip ends with each ``Q`` and each ``S`` (sync).
    """

    # Parse, bind, describe, execute, close: a sync or a flush follows.
    PARTS = frozenset((b"P", b"B", b"D", b"E", b"C"))

    def __init__(self) -> None:
        super().__init__()
        self._started = False
        self._last = b""
        self._prepared: dict[bytes, bytes] = {}

    @property
    def whole(self) -> bool:
        """Whether the server can act on all that has come."""
        return super().whole and self._last not in self.PARTS

    def feed(self, data: bytes) -> Iterator[Request]:
        """Yield the messages that are complete now; none of the start-up."""
        self.unfinished += data
        while True:
            type_bytes = 1 if self._started else 0
            if len(self.unfinished) < type_bytes + 4:
                return
            (size,) = struct.unpack_from("!I", self.unfinished, type_bytes)
            end = type_bytes + size
            if len(self.unfinished) < end:
                return
            message, self.unfinished = self.unfinished[:end], self.unfinished[end:]
            if self._started:
                self._last = message[:1]
                yield self._message(self._last, message[5:])
            else:
                (code,) = struct.unpack_from("!I", message, 4)
                self._started = code not in ENCRYPTION_REQUESTS

    def _message(self, kind: bytes, body: bytes) -> Request:
        if kind == b"Q":
            return kind, body.rstrip(b"\0")
        if kind == b"P":
            name, sql, _ = body.split(b"\0", 2)
            self._prepared[name] = sql
            return kind, sql
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return kind, self._prepared.get(name, b"")
        return (kind,)


class HttpRequests(Requests):
    """Requests of HTTP/1.1 with a Content-Length: what for (the path), and the body."""

    _LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)

    def feed(self, data: bytes) -> Iterator[Request]:
        """Yield the requests that are complete now."""
        self.unfinished += data
        while True:
            head, separator, rest = self.unfinished.partition(b"\r\n\r\n")
            length = self._LENGTH.search(head)
            size = int(length[1]) if length else 0
            if not separator or len(rest) < size:
                return
            self.unfinished = rest[size:]
            yield head.split()[1], rest[:size]

"""What Redis answers to a script, read from bytes: the part of RESP2 and RESP3 that scripts use.

redis-py's reader serves every command; an answer of ours is a text or a short list of them, and
reading it at once is several times faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import InvalidResponse

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MISSING", "Answers"]

_SIZE = b"$%d".__mod__
"""What a text of so many bytes is announced with."""

MISSING = object()
"""Instead of an answer of which not all has come."""


class _IncompleteError(Exception):
    pass


class Answers:
    """Takes bytes as they come, and gives answers: texts as bytes, errors as exceptions.

    Args:
        error_of: Makes an exception of the text of an error.

    Attributes:
        skips: How many answers of one line come before the one that is wanted.
        unread: What has come, from the answer that was given last on; empty when that was all.
    """

    def __init__(self, error_of: Callable[[str], Exception]) -> None:
        self.skips = 0
        self._error_of = error_of
        self.unread = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Take what has come."""
        self.unread = self.unread[self._at :] + data if self.unread else data
        self._at = 0

    def take(self, data: bytes) -> Any:  # noqa: ANN401 - whatever a script answers
        """Take what has come, and give the next answer; see `feed` and `next`."""
        if not (self.unread or self.skips):
            head, _, rest = data.partition(b"\r\n")
            if head == b"$%d" % (len(rest) - 2) and rest[1:]:  # a text, and nothing else
                return rest[:-2]
            if (texts := _texts_alone(data)) is not None:
                return texts
        self.feed(data)
        return self.next()

    def next(self) -> Any:  # noqa: ANN401 - whatever a script answers
        """The next answer; `MISSING` when not all of it has come.

        Raises:
            InvalidResponse: This is no answer to a script.
        """
        if not self.unread or (self.skips and not self._skip()):
            return MISSING
        try:
            while True:
                is_push = self.unread.startswith(b">", self._at)  # asked for by nobody
                answer, self._at = self._read(self._at)
                if self._at == len(self.unread):
                    self.unread, self._at = b"", 0
                if not is_push:
                    return answer
        except _IncompleteError:
            return MISSING
        except ValueError:  # where a number should be
            raise InvalidResponse(f"Protocol Error: {self.unread[self._at :][:80]!r}") from None

    def _skip(self) -> bool:
        """Leave out what is not wanted; whether all of that has come."""
        try:
            while self.unread.startswith(b">", self._at):  # asked for by nobody, as in `next`
                _, self._at = self._read(self._at)
        except _IncompleteError:
            return False
        *unwanted, self.unread = self.unread[self._at :].split(b"\r\n", self.skips)
        self.skips -= len(unwanted)
        self._at = 0
        return not self.skips and bool(self.unread)

    def _read(self, at: int) -> tuple[Any, int]:
        data = self.unread
        end = data.find(b"\r\n", at)
        if end < 0:
            raise _IncompleteError
        kind, rest = data[at : at + 1], data[at + 1 : end]
        at = end + 2
        match kind:
            case b"$":
                return self._text(at, int(rest))
            case b"*" | b">" | b"%":
                # A map is what a cluster tells of its nodes, in RESP3.
                return self._list(at, int(rest) * (2 if kind == b"%" else 1))
            case b":":
                return int(rest), at
            case b"+":
                return rest, at
            case b"_":
                return None, at
            case b"-":
                return self._error_of(rest.decode(errors="replace")), at
        raise InvalidResponse(f"Protocol Error: {data[at - 2 - len(rest) - 1 : at]!r}")

    def _list(self, at: int, size: int) -> tuple[list[Any] | None, int]:
        if size < 0:
            return None, at
        answers = []
        for _ in range(size):
            answer, at = self._read(at)
            answers.append(answer)
        return answers, at

    def _text(self, at: int, size: int) -> tuple[bytes | None, int]:
        if size < 0:
            return None, at
        end = at + size
        if len(self.unread) < end + 2:
            raise _IncompleteError
        return self.unread[at:end], end + 2


def _texts_alone(data: bytes) -> list[bytes] | None:
    """A list of texts, where that is all that has come: what a script answers nearly always."""
    words = data.split(b"\r\n")
    texts = words[2:-1:2]  # *size, $length and text each, and nothing behind the last line
    if words[-1] or words[0] != b"*%d" % len(texts):
        return None
    if words[1:-1:2] != list(map(_SIZE, map(len, texts))):
        return None
    return texts

"""How a script's run looks on the wire, and several of them in one pipeline.

Packed here rather than by redis-py, which makes an object of each command and looks at the type
of each word: a service that keeps ten thousand leases alive sends as many requests at once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencing.locks.redis.scripts import Script

__all__ = [
    "ASKING", "Pipeline", "Request", "Wait", "packed", "packed_acknowledged", "packed_behind",
    "packed_words", "wait_words",
]  # fmt: skip

Request = tuple["Script", tuple[bytes, ...], list[bytes]]
"""A script, its keys and its arguments."""

ASKING = b"*1\r\n$6\r\nASKING\r\n"
"""What lets a node of a cluster answer the next request although the slot is not its own yet."""

Wait = tuple[int, float]
"""How many replicas to wait for, and how long at most, in seconds."""

CHUNK_REQUESTS = 256
"""How many requests are sent before their answers are read."""

_UNANSWERED = object()


def packed(request: Request, *, by_text: bool = False) -> bytes:
    """The bytes of an EVALSHA, or of an EVAL, which also makes the script known to Redis."""
    script, keys, args = request
    if by_text:
        return packed_words(b"EVAL", script.text.encode(), b"%d" % len(keys), *keys, *args)
    head = _evalsha(script.sha, keys, len(args))
    try:
        return head + b"".join([_HEADS[len(arg)] + arg + b"\r\n" for arg in args])
    except IndexError:
        return head + _wire_form(args)


def packed_behind(request: Request) -> bytes:
    """The bytes of an EVALSHA behind a command whose answer, of one line, is to be skipped.

    Redis writes to its clients in the reverse order of when there was first something to be written
    to each. Who releases a lock would be answered first, and whoever waits for it in another
    process be told when that is done; and there he is the one that others wait for. With an answer
    before it, it is the other way round.
    """
    return _exists(request[1][0]) + packed(request)


@lru_cache(maxsize=1024)  # locks are taken again and again
def _evalsha(sha: str, keys: tuple[bytes, ...], args: int) -> bytes:
    """An EVALSHA but for its arguments, of which there are so many."""
    words = (b"EVALSHA", sha.encode(), b"%d" % len(keys), *keys)
    return b"*%d\r\n%b" % (len(words) + args, _wire_form(words))


@lru_cache(maxsize=1024)
def _exists(key: bytes) -> bytes:
    return packed_words(b"EXISTS", key)


def packed_words(*words: bytes) -> bytes:
    """The bytes of a command."""
    return b"*%d\r\n%b" % (len(words), _wire_form(words))


_HEADS = tuple(b"$%d\r\n" % size for size in range(1024))
"""What stands before a word of so many bytes; to format it takes longer than all the rest."""


def _wire_form(words: Sequence[bytes]) -> bytes:
    try:
        return b"".join([_HEADS[len(word)] + word + b"\r\n" for word in words])
    except IndexError:  # a script's text, say
        return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def wait_words(replicas: int, seconds: float) -> tuple[bytes, bytes, bytes]:
    """A WAIT for replicas, which is answered with how many have what was written before it.

    Args:
        replicas: How many.
        seconds: How long at most.
    """
    return b"WAIT", b"%d" % replicas, b"%d" % max(1, int(seconds * 1000))  # 0 would be for ever


def packed_acknowledged(request: Request, wait: Wait, *, by_text: bool = False) -> bytes:
    """The bytes of a run and of the WAIT behind it."""
    return packed(request, by_text=by_text) + packed_words(*wait_words(*wait))


class Pipeline:
    """Requests that travel together, and what comes of each.

    Args:
        requests: What to run.
        wait: How many replicas to wait for behind all of them, if any.

    Attributes:
        answers: Per request its answer, or the exception that it met; and where replicas are waited
            for, how many there were.
    """

    def __init__(self, requests: Sequence[Request], wait: Wait | None = None) -> None:
        self._requests = requests
        self._wait = wait
        self.answers: list[Any] = [_UNANSWERED] * (len(requests) + (wait is not None))

    def chunks(self) -> Iterator[tuple[bytes, Sequence[int]]]:
        """What to send, and the places in `answers` for what is then to be read, in turn.

        Requests that Redis refuses, because it does not know their script, come once more: the
        first of each script by its text, from which Redis knows it for those behind.
        """
        yield from self._chunks(range(len(self._requests)), by_text=False)
        unknown = [n for n, answer in enumerate(self.answers) if isinstance(answer, NoScriptError)]
        for number in unknown:
            self.answers[number] = _UNANSWERED
        yield from self._chunks(unknown, by_text=True)
        if self._wait is not None:
            yield packed_words(*wait_words(*self._wait)), [len(self._requests)]

    def outcomes(self) -> list[Any]:
        """Per request its exception or its answer, this one in a pair with what was waited for."""
        if self._wait is None:
            return self.answers
        *answers, acknowledged = self.answers
        if isinstance(acknowledged, BaseException):
            # How many replicas have it nobody can say.
            return [a if isinstance(a, BaseException) else acknowledged for a in answers]
        return [a if isinstance(a, BaseException) else (a, acknowledged) for a in answers]

    def _chunks(
        self, numbers: Sequence[int], *, by_text: bool
    ) -> Iterator[tuple[bytes, Sequence[int]]]:
        told: set[Script] = set()
        for start in range(0, len(numbers), CHUNK_REQUESTS):
            chunk = numbers[start : start + CHUNK_REQUESTS]
            data = []
            for number in chunk:
                request = self._requests[number]
                data.append(packed(request, by_text=by_text and request[0] not in told))
                told.add(request[0])
            yield b"".join(data), chunk

    def fail(self, error: BaseException) -> None:
        """Nothing more will be answered, because of this error."""
        self.answers = [error if answer is _UNANSWERED else answer for answer in self.answers]

"""Lines of waiters within one process, for every lock service: the first of each line asks.

Without I/O, but for the queue of messages that a task waits for.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from typing import Generic, Protocol, TypeVar

__all__ = ["TURN", "AsyncBox", "Box", "BoxT", "Lines", "Message", "Threads"]

Message = int | str
"""What a waiter is told: the token with which it was handed the lock, or one of the words below."""

TURN = "turn"
"""It is the first in line now."""


class Box(Protocol):
    """Where a waiter finds what it is told."""

    def put(self, message: Message) -> None:
        """Leave a message."""


BoxT = TypeVar("BoxT", bound=Box)


class Lines(Generic[BoxT]):
    """Who stands in line for which resource: the first of each line asks.

    Whatever is interrupted may be done again; it tells before it changes, so that nobody is left
    waiting for a turn that has come.
    """

    def __init__(self) -> None:
        self._lines: dict[str, deque[BoxT]] = {}

    def join(self, resource: str, box: BoxT) -> bool:
        """Stand in line; return whether it is one's turn at once."""
        line = self._lines.get(resource)
        if line:
            line.append(box)
            return False
        self._lines[resource] = deque((box,))
        return True

    def tell_first(self, resource: str, message: Message) -> None:
        """Leave a message for whoever is the first in line, if anybody is; at any time."""
        line = self._lines.get(resource)
        if line:  # which it is for ever, also when it has ended
            line[0].put(message)

    def leave(self, resource: str, box: BoxT) -> None:
        """Leave the line, from wherever one stands; whoever is the first then is told."""
        line = self._lines.get(resource)
        if line is None or box not in line:
            return
        if len(line) == 1:
            del self._lines[resource]
            return
        if line[0] is box:
            line[1].put(TURN)
        line.remove(box)

    def scatter(self, resource: str) -> None:
        """End the line: each asks for itself.

        The lock service could not be asked by the first. Nobody behind it shall have to wait until
        all those before him have found out the same.
        """
        for box in self._lines.get(resource, ()):
            box.put(TURN)
        self._lines.pop(resource, None)


class Threads:
    """Which threads have come to wait, and as whom: one at a time in each.

    Who comes second is a signal handler's acquisition. The thread that it runs in stands still
    until it is done: it would wait in vain behind it in line, or for what it was about to do, and
    it may see what is half done. So it has to do without that, and ask for itself.
    """

    def __init__(self) -> None:
        self._here: dict[int, object] = {}

    def enter(self, who: object) -> object:
        """Come; return who is the first here, which may be oneself."""
        return self._here.setdefault(threading.get_ident(), who)

    def has(self, who: object) -> bool:
        """Whether one has come, as the first, and not gone."""
        return self._here.get(threading.get_ident()) is who

    def leave(self, who: object) -> None:
        """Go. To be called as often as one likes, and by whoever was not the first."""
        thread = threading.get_ident()
        if self._here.get(thread) is who:
            del self._here[thread]


class AsyncBox:
    """A queue of messages that one task waits for."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._filled: asyncio.Future[None] | None = None

    def put(self, message: Message) -> None:
        """Leave a message."""
        self._messages.append(message)
        self._wake()

    async def get(self, seconds: float) -> Message | None:
        """The next message, or ``None`` if there is none within so many seconds."""
        if not self._messages:
            loop = asyncio.get_running_loop()
            self._filled = loop.create_future()
            timer = None if seconds == math.inf else loop.call_later(seconds, self._wake)
            try:
                await self._filled
            finally:
                if timer is not None:
                    timer.cancel()
        return self._messages.popleft() if self._messages else None

    def _wake(self) -> None:
        if self._filled is not None and not self._filled.done():
            self._filled.set_result(None)

"""A conversation with Redis in asyncio, on a connection of redis-py: to ask, and to hear by when.

redis-py connects, greets and looks after the connection's health by asyncio's streams, as always.
Between those this takes what comes as soon as the event loop has it, and wakes the task that waits:
a stream's reader, and an ``asyncio.timeout`` around each request, do the same for a seventh
of all that a lock costs the processor.

A time limit is a number, as long as it is kept: each connection has one timer, which goes off once
in a while, to find that there is nothing to end. Nor does anybody wait for the transport's buffer:
what is said is answered before more is said, so there is never more in it than that; and whoever
waits for the answer gives up in time, whatever keeps it from coming.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

from redis.exceptions import InvalidResponse

from fencing.clock import now
from fencing.locks.redis.reading import Between
from fencing.locks.redis.resp import MISSING

if TYPE_CHECKING:
    from fencing.locks.redis.reading import Transport
    from fencing.locks.redis.resp import Answers

__all__ = ["Conversation"]


class Conversation(Between):
    """Asks on a transport, and takes what comes; for one task at a time.

    It does not know the connection: the event loop keeps it, and would keep that, too, so that
    redis-py could not tell who has forgotten to close it.

    Args:
        transport: As in `Between`.
        answers: Takes what comes.

    Attributes:
        until: When whoever waits gives up (:func:`fencing.clock.now`, seconds).
    """

    def __init__(self, transport: Transport, answers: Answers) -> None:
        super().__init__(transport)
        self.until = math.inf
        self._transport = transport
        self._answers = answers
        self._loop = asyncio.get_running_loop()
        self._is_ours = False  # what comes; otherwise redis-py's
        self._waiter: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._failure: OSError | None = None

    def say(self, data: bytes) -> None:
        """Send requests."""
        self._is_ours = True
        self._transport.write(data)

    def pause(self) -> None:
        """Leave what comes to redis-py, until something is said again."""
        self._is_ours = False

    def is_over(self) -> bool:
        """Whether the connection has ended, as far as the event loop knows."""
        return self._failure is not None or self._transport.is_closing()

    def answer(self) -> asyncio.Future[Any]:
        """What to await for the next answer, of which not all has come.

        Raises:
            OSError: The connection has failed, or, when awaited, fails meanwhile.
            TimeoutError: When awaited: nothing has come by then. It is an OSError.
        """
        if self._failure is not None:
            raise self._failure
        if self._timer is None or self.until < self._timer_at:
            self._set_timer()
        self._waiter = self._loop.create_future()
        return self._waiter

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        if not self._is_ours:
            self._before.data_received(data)
            return
        waiter = self._waiter
        if waiter is None or waiter.done():
            self._answers.feed(data)
            return
        try:
            if (answer := self._answers.take(data)) is not MISSING:
                waiter.set_result(answer)
        except InvalidResponse as error:
            waiter.set_exception(error)

    def _end(self, error: Exception | None) -> None:
        if self._failure is None:
            if not isinstance(error, OSError):
                error = ConnectionResetError(error or "Redis has closed it")
            self._failure = error
            self._fail(error)
        if self._timer is not None:
            self._timer.cancel()

    def _fail(self, error: OSError) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(error)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self.until
        self._timer = self._loop.call_later(self.until - now(), self._look_at_the_clock)

    def _look_at_the_clock(self) -> None:
        self._timer = None
        if self._waiter is None or self._waiter.done():
            return  # the next one who waits sets it again
        if now() < self.until:
            self._set_timer()
        else:
            self._fail(TimeoutError("no answer in time"))

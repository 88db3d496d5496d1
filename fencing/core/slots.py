"""Permits for the connections of a pool, handed out in turn and with a deadline for each.

A pool of SQLAlchemy waits with one time-out for everybody and tells it by an error of its own. Who
holds a permit never waits for a connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.errors import LockNotAcquiredError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["NoSlotError", "Slots"]


class NoSlotError(Exception):
    """No permit was free in time.

    Attributes:
        busy: Whether it is known that others' work was done meanwhile.
    """

    busy = False

    @staticmethod
    def as_error(resource: str) -> LockNotAcquiredError:
        """The error for an admission that got no connection."""
        return LockNotAcquiredError(
            f"no connection was free in time to admit the lease on {resource!r}: all of the pool's "
            "are waiting for open transactions of earlier holders, or busy; try later, or enlarge "
            "the pool",
            resource=resource,
        )


class Slots:
    """A number of permits, for threads and tasks alike; first come, first served.

    Args:
        capacity: How many there are; ``math.inf`` for no limit.
    """

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        # Sets and queues of turns, no counts: what an interrupt leaves half done can be done again.
        self._granted: set[Future[None]] = set()
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.RLock()  # a signal handler may come for one, too

    @contextmanager
    def slot(self, until: float) -> Iterator[None]:
        """Hold a permit.

        Args:
            until: How long to wait for it: a moment of :func:`fencing.clock.now`, in seconds.

        Raises:
            NoSlotError: None was free in time.
        """
        turn: Future[None] = Future()
        try:
            try:
                self._queue(turn)
                try:
                    turn.result(max(0.0, until - now()))
                except TimeoutError:
                    raise NoSlotError from None
                yield
            finally:
                self._leave(turn)
        finally:
            self._leave(turn)  # an interrupt may have come before the first line of the other one

    @asynccontextmanager
    async def aslot(self, until: float) -> AsyncIterator[None]:
        """:meth:`slot` for asyncio."""
        turn: Future[None] = Future()
        try:
            self._queue(turn)
            if not turn.done():
                try:
                    patience = max(0.0, until - now())
                    await heeding(asyncio.wait_for(asyncio.wrap_future(turn), patience))
                except TimeoutError:
                    raise NoSlotError from None
            yield
        finally:
            self._leave(turn)

    @property
    def taken(self) -> int:
        """How many are held."""
        return len(self._granted)

    def _queue(self, turn: Future[None]) -> None:
        with self._lock:
            self._waiting.append(turn)
            self._hand_on()

    def _leave(self, turn: Future[None]) -> None:
        """Give the permit back, or leave the queue; to be called as often as one likes."""
        with self._lock:
            with suppress(ValueError):
                self._waiting.remove(turn)
            self._granted.discard(turn)
            self._hand_on()

    def _hand_on(self) -> None:
        """Give those who wait what is free; go on with what an interrupt has left half done.

        A signal handler may do the same between any two steps, to the end.
        """
        while True:
            try:
                first = self._waiting[0]
            except IndexError:
                return
            if first not in self._granted and len(self._granted) >= self.capacity:
                return
            self._granted.add(first)
            with suppress(InvalidStateError):
                if not first.done():
                    first.set_result(None)
            if first.cancelled():
                self._granted.discard(first)  # given up
            with suppress(ValueError):
                self._waiting.remove(first)

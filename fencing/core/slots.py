"""Permits for the connections of a pool, handed out in turn and with a deadline for each.

A pool of SQLAlchemy waits with one time-out for everybody and tells it by an error of its own. Who
holds a permit never waits for a connection.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.errors import LockNotAcquiredError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

__all__ = ["NoSlotError", "Slots"]


class NoSlotError(Exception):
    """No permit was free in time."""

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
        self._free = capacity
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def slot(self, until: float) -> Iterator[None]:
        """Hold a permit.

        Args:
            until: How long to wait for it: a moment of :func:`fencing.clock.now`, in seconds.

        Raises:
            NoSlotError: None was free in time.
        """
        turn = self._queue()
        try:
            try:
                turn.result(max(0.0, until - now()))
            except TimeoutError:
                raise NoSlotError from None
            yield
        finally:
            self._leave(turn)

    @asynccontextmanager
    async def aslot(self, until: float) -> AsyncIterator[None]:
        """:meth:`slot` for asyncio."""
        turn = self._queue()
        try:
            if not turn.done():
                try:
                    patience = max(0.0, until - now())
                    await heeding(asyncio.wait_for(asyncio.wrap_future(turn), patience))
                except TimeoutError:
                    raise NoSlotError from None
            yield
        finally:
            self._leave(turn)

    def _queue(self) -> Future[None]:
        turn: Future[None] = Future()
        with self._lock:
            if self._free > 0:
                self._free -= 1
                turn.set_result(None)
            else:
                self._waiting.append(turn)
        return turn

    def _leave(self, turn: Future[None]) -> None:
        """Hand the permit on, or leave the queue; a turn that was given up may have come."""
        with self._lock:
            if turn in self._waiting:
                self._waiting.remove(turn)
                return
            if turn.cancelled():
                return
            while self._waiting:
                following = self._waiting.popleft()
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._free += 1

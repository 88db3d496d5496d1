"""Waiting for a lock that another holds: in a thread, and in a task.

Of the waiters of one process on one resource the first asks the nodes; the others stand in line
behind it. It asks again and again, at random times, and at once when the lock is released in this
process. Nobody tells it what is released elsewhere.
"""

from __future__ import annotations

import queue
import threading

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.lines import TURN, AsyncBox, Lines, Message, Threads
from fencing.locks.redis.asking import Line, Signal, Wait

__all__ = ["FREE", "AsyncRoom", "AsyncWaiter", "Room", "Waiter"]

FREE = "free"
"""What the first in line is told: the lock was released in this process."""


class Room:
    """Who waits in this process, in threads."""

    def __init__(self) -> None:
        self._lines: Lines[queue.SimpleQueue[Message]] = Lines()
        self._threads = Threads()
        self._lock = threading.Lock()

    def join(self, resource: str, box: queue.SimpleQueue[Message]) -> bool:
        """See `Lines.join`; what a signal handler acquires asks at once, see `Threads`."""
        if self._threads.enter(box) is not box:
            return True
        with self._lock:
            return self._lines.join(resource, box)

    def leave(self, resource: str, box: queue.SimpleQueue[Message], *, scatter: bool) -> None:
        """See `Lines.leave`, and `Lines.scatter`."""
        if not self._threads.has(box):
            return
        with self._lock:
            if scatter:
                self._lines.scatter(resource)
            self._lines.leave(resource, box)
        self._threads.leave(box)

    def tell_free(self, resource: str) -> None:
        """A lock was released."""
        # Without the lock: a signal handler may release a lease while its thread has it.
        self._lines.tell_first(resource, FREE)


class Waiter:
    """One acquisition that may have to wait."""

    def __init__(self, room: Room, resource: str) -> None:
        self._room = room
        self._resource = resource
        self._box: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._fails = False

    def enter(self) -> bool:
        """Begin to wait; whether others are before us."""
        return not self._room.join(self._resource, self._box)

    def perform(self, step: Line | Wait) -> Signal:
        """Perform a step of waiting."""
        end = now() + step.seconds
        while True:
            left = max(0.0, end - now())
            try:
                message = self._box.get(timeout=min(left, threading.TIMEOUT_MAX))
            except queue.Empty:
                break
            if message == TURN or isinstance(step, Wait):
                break
        return Signal(now())

    def give_up(self, error: BaseException) -> None:
        """It has failed. If nodes could not be asked, nobody shall wait to find out the same."""
        self._fails = isinstance(error, LockServiceError)

    def leave(self) -> None:
        """It does not wait any more. To be called as often as one likes."""
        self._room.leave(self._resource, self._box, scatter=self._fails)
        self._fails = False  # the next line on the resource is others'


class AsyncRoom:
    """:class:`Room` for asyncio."""

    def __init__(self) -> None:
        self._lines: Lines[AsyncBox] = Lines()

    def join(self, resource: str, box: AsyncBox) -> bool:
        """See `Lines.join`."""
        return self._lines.join(resource, box)

    def leave(self, resource: str, box: AsyncBox, *, scatter: bool) -> None:
        """See `Room.leave`."""
        if scatter:
            self._lines.scatter(resource)
        self._lines.leave(resource, box)

    def tell_free(self, resource: str) -> None:
        """See `Room.tell_free`."""
        self._lines.tell_first(resource, FREE)


class AsyncWaiter:
    """:class:`Waiter` for asyncio."""

    def __init__(self, room: AsyncRoom, resource: str) -> None:
        self._room = room
        self._resource = resource
        self._box = AsyncBox()
        self._fails = False

    def enter(self) -> bool:
        """See :meth:`Waiter.enter`."""
        return not self._room.join(self._resource, self._box)

    async def perform(self, step: Line | Wait) -> Signal:
        """See :meth:`Waiter.perform`."""
        end = now() + step.seconds
        while True:
            message = await self._box.get(max(0.0, end - now()))
            if message is None or message == TURN or isinstance(step, Wait):
                break
        return Signal(now())

    def give_up(self, error: BaseException) -> None:
        """See :meth:`Waiter.give_up`."""
        self._fails = isinstance(error, LockServiceError)

    def leave(self) -> None:
        """See :meth:`Waiter.leave`."""
        self._room.leave(self._resource, self._box, scatter=self._fails)
        self._fails = False  # the next line on the resource is others'

"""One acquisition that may have to wait: in a thread, and in a task.

It performs the steps of waiting; :mod:`fencing.locks.postgres.acquiring` decides.
"""

from __future__ import annotations

import math
import queue
import threading
from typing import TYPE_CHECKING

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.lines import TURN, AsyncBox, Message
from fencing.locks.postgres.asking import Line, Listen, Signal
from fencing.locks.postgres.listening import CALLED, LOST, READY

if TYPE_CHECKING:
    from fencing.locks.postgres.asking import Waiting
    from fencing.locks.postgres.listening import AsyncListener, AsyncRoom, Listener, Room

__all__ = ["AsyncWaiter", "Waiter"]


class Waiter:
    """One acquisition that may have to wait."""

    def __init__(self, room: Room, resource: str, holder: str) -> None:
        self._room = room
        self._resource = resource
        self._holder = holder
        self._box: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._listener: Listener | None = None
        self._has_left = False

    def enter(self, *, in_line: bool) -> bool:
        """Begin to wait; whether others of this process are before it.

        What a signal handler acquires neither stands in line nor listens; see `Threads`.
        """
        if self._room.threads.enter(self) is not self:
            return False
        with self._room.lock:
            return in_line and not self._room.lines.join(self._resource, self._box)

    def perform(self, step: Waiting) -> Signal:
        """Perform a step of waiting."""
        if isinstance(step, Line):
            self._told(step.seconds, TURN)
        elif isinstance(step, Listen):
            if self._attend():
                self._told(step.seconds, READY, LOST)
        else:
            self._attend()
            self._told(step.seconds, CALLED)
        return Signal(now())

    def give_up(self, error: BaseException) -> None:
        """It has failed; those behind it find out for themselves, all at once."""
        if isinstance(error, LockServiceError) and self._room.threads.has(self):
            with self._room.lock:
                self._room.lines.scatter(self._resource)

    def leave(self) -> None:
        """It does not wait any more. To be called as often as one likes."""
        if self._has_left:
            return
        if self._room.threads.has(self):
            with self._room.lock:
                self._room.lines.leave(self._resource, self._box)
                if self._listener is not None:
                    self._listener.remove(self._holder)
            self._room.threads.leave(self)
        self._has_left = True

    def _attend(self) -> bool:
        """Have oneself told what is said; whether that has yet to begin."""
        if not self._room.threads.has(self):
            return False
        with self._room.lock:
            found = self._room.listener()
            if found is not None and found is not self._listener:
                found.add(self._holder, self._box)
            self._listener = found
            return found is not None and not found.listens

    def _told(self, seconds: float, *awaited: str) -> None:
        """Wait until it is told one of these, for so many seconds."""
        end = now() + seconds
        while True:
            left = max(0.0, end - now())
            try:
                message = self._box.get(timeout=min(left, threading.TIMEOUT_MAX))
            except queue.Empty:
                return
            if message in awaited:
                return


class AsyncWaiter:
    """:class:`Waiter` for asyncio."""

    def __init__(self, room: AsyncRoom, resource: str, holder: str) -> None:
        room.enter()
        self._room = room
        self._resource = resource
        self._holder = holder
        self._box = AsyncBox()
        self._listener: AsyncListener | None = None
        self._has_left = False

    def enter(self, *, in_line: bool) -> bool:
        """See :meth:`Waiter.enter`."""
        return in_line and not self._room.lines.join(self._resource, self._box)

    async def perform(self, step: Waiting) -> Signal:
        """See :meth:`Waiter.perform`."""
        if isinstance(step, Line):
            await self._told(step.seconds, TURN)
        elif isinstance(step, Listen):
            if self._attend():
                await self._told(step.seconds, READY, LOST)
        else:
            self._attend()
            await self._told(step.seconds, CALLED)
        return Signal(now())

    def give_up(self, error: BaseException) -> None:
        """See :meth:`Waiter.give_up`."""
        if isinstance(error, LockServiceError):
            self._room.lines.scatter(self._resource)

    def leave(self) -> None:
        """See :meth:`Waiter.leave`."""
        if self._has_left:
            return
        self._room.lines.leave(self._resource, self._box)
        if self._listener is not None:
            self._listener.remove(self._holder)
        self._has_left = True

    def _attend(self) -> bool:
        found = self._room.listener()
        if found is not None and found is not self._listener:
            found.add(self._holder, self._box)
        self._listener = found
        return found is not None and not found.listens

    async def _told(self, seconds: float, *awaited: str) -> None:
        end = now() + seconds if seconds != math.inf else math.inf
        while True:
            message = await self._box.get(max(0.0, end - now()))
            if message is None or message in awaited:
                return

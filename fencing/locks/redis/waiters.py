"""One acquisition that may have to wait: in a thread, and in a task.

It performs the steps of waiting; :mod:`fencing.locks.redis.waiting` decides, and
:mod:`fencing.locks.redis.listening` has what those who wait share.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Any

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.lines import AsyncBox, Message
from fencing.locks.redis.asking import Line, Listen, Signal
from fencing.locks.redis.waiting import LOST, READY, TURN

if TYPE_CHECKING:
    from fencing.locks.redis.asking import Waiting
    from fencing.locks.redis.listening import AsyncWaiters, Waiters

__all__ = ["AsyncWaiter", "Waiter"]


class Waiter:
    """One acquisition that may have to wait.

    Attributes:
        has_left: Whether it does not wait any more.
    """

    # What every waiter begins with is its class's: most get the lock at once.
    _subscriber: Any = None
    _listens = False
    _goes_without = False
    _reads_for: queue.SimpleQueue[Message] | None = None
    has_left = False

    def __init__(self, waiters: Waiters, resource: str, key: bytes, holder: str) -> None:
        self._waiters = waiters
        self._resource = resource
        self._key = key
        self._holder = holder
        self._box: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def enter(self, *, in_line: bool) -> str | None:
        """Begin to wait; return what to register with, empty if there is nothing yet.

        ``None`` if it is not its turn. What a signal handler acquires while its thread is in here
        stands in no line, see `Threads`; if its thread has the lock, it does not listen either.
        """
        first = self._waiters.threads.enter(self)
        if first is not self:
            in_line = False
            self._goes_without = self._waiters.has_lock
            if self._goes_without:
                return ""
            if isinstance(first, Waiter):
                self._reads_for = first._box  # noqa: SLF001 - of our own kind
        with self._waiters.lock:
            if in_line and not self._waiters.lines.join(self._resource, self._box):
                return None
        return self._attend(start=False) if self._waiters.subscribers else ""

    def perform(self, step: Waiting) -> Signal:
        """Perform a step of waiting."""
        if isinstance(step, Line):
            self._told(step.seconds, TURN)
            return self._listen(0.0, start=False)
        if isinstance(step, Listen):
            return self._listen(step.seconds, start=True)
        if self._listens and not self._waiters.is_where(self._key, self._subscriber):
            return Signal(now())  # as if the channel were lost: nothing is said there any more
        self._waiters.note_wanted(self._resource, wanted=True)
        awaited = LOST if self._listens else READY
        message = self._told(step.seconds, awaited, token=True, reads=self._listens)
        return Signal(now(), token=message if isinstance(message, int) else 0)

    def give_up(self, error: BaseException) -> None:
        """It has failed, and perhaps could not say so to Redis."""
        if self._goes_without:
            return  # it was not registered
        self._waiters.disown(self._holder, self._resource)
        if isinstance(error, LockServiceError):
            with self._waiters.lock:
                self._waiters.lines.scatter(self._resource)

    def leave(self) -> None:
        """It does not wait any more. To be called as often as one likes."""
        if self.has_left:
            return
        if not self._goes_without:
            with self._waiters.lock:
                self._waiters.lines.leave(self._resource, self._box)
                if self._subscriber is not None:
                    self._subscriber.dismiss(self._holder, self._box)
            self._waiters.threads.leave(self)
        self.has_left = True

    def _listen(self, seconds: float, *, start: bool) -> Signal:
        if self._subscriber is not None:
            self._subscriber.let_go(self._box)  # it asks next, and others may be told meanwhile
        nonce = self._attend(start=start)
        if self._subscriber is not None and not nonce:
            self._told(seconds, READY, LOST)
            nonce = self._nonce()
        return Signal(now(), nonce)

    def _attend(self, *, start: bool) -> str:
        """Have oneself told what is said where the key is; return what to register with."""
        if not self._goes_without and (start or self._waiters.subscribers):
            with self._waiters.lock:
                found = self._waiters.subscriber(self._key, start=start)
                if found is not self._subscriber and self._subscriber is not None:
                    self._subscriber.audience.remove(self._holder)
                self._subscriber = found  # first, so that whoever is interrupted leaves it
                if found is not None:
                    found.audience.add(self._holder, self._box)
        return self._nonce()

    def _nonce(self) -> str:
        self._listens = self._subscriber is not None and self._subscriber.audience.listens
        return self._waiters.nonce if self._listens else ""

    def _told(
        self, seconds: float, *awaited: str, token: bool = False, reads: bool = False
    ) -> Message | None:
        """Which of the awaited it is told within so many seconds, if any; or else a token.

        Args:
            seconds: So many.
            *awaited: Words.
            token: Whether a token is awaited as well.
            reads: Whether it reads for itself what is said, if nobody else does.
        """
        end = now() + seconds
        while True:
            if reads:
                self._subscriber.read_for(self._box, end, self._reads_for)
            left = max(0.0, end - now())
            try:
                message = self._box.get(timeout=min(left, threading.TIMEOUT_MAX))
            except queue.Empty:
                return None
            if message in awaited or (token and isinstance(message, int)):
                return message


class AsyncWaiter:
    """:class:`Waiter` for asyncio."""

    _subscriber: Any = None
    _listens = False
    has_left = False

    def __init__(self, waiters: AsyncWaiters, resource: str, key: bytes, holder: str) -> None:
        self._waiters = waiters
        self._resource = resource
        self._key = key
        self._holder = holder
        self._box = AsyncBox()

    def enter(self, *, in_line: bool) -> str | None:
        """See :meth:`Waiter.enter`."""
        self._waiters.leave_closed_loop()
        if in_line and not self._waiters.lines.join(self._resource, self._box):
            return None
        return self._attend(start=False) if self._waiters.subscribers else ""

    async def perform(self, step: Waiting) -> Signal:
        """See :meth:`Waiter.perform`."""
        if isinstance(step, Line):
            await self._told(step.seconds, TURN)
            return await self._listen(0.0, start=False)
        if isinstance(step, Listen):
            return await self._listen(step.seconds, start=True)
        if self._listens and not self._waiters.is_where(self._key, self._subscriber):
            return Signal(now())  # as if the channel were lost: nothing is said there any more
        self._waiters.note_wanted(self._resource, wanted=True)
        awaited = LOST if self._listens else READY
        message = await self._told(step.seconds, awaited, token=True)
        return Signal(now(), token=message if isinstance(message, int) else 0)

    def give_up(self, error: BaseException) -> None:
        """See :meth:`Waiter.give_up`."""
        self._waiters.disown(self._holder, self._resource)
        if isinstance(error, LockServiceError):
            self._waiters.lines.scatter(self._resource)

    def leave(self) -> None:
        """See :meth:`Waiter.leave`."""
        if self.has_left:
            return
        self._waiters.lines.leave(self._resource, self._box)
        if self._subscriber is not None:
            self._subscriber.audience.remove(self._holder)
        self.has_left = True

    async def _listen(self, seconds: float, *, start: bool) -> Signal:
        nonce = self._attend(start=start)
        if self._subscriber is not None and not nonce:
            await self._told(seconds, READY, LOST)
            nonce = self._nonce()
        return Signal(now(), nonce)

    def _attend(self, *, start: bool) -> str:
        """Have oneself told what is said where the key is; return what to register with."""
        if start or self._waiters.subscribers:
            found = self._waiters.subscriber(self._key, start=start)
            if found is not self._subscriber and self._subscriber is not None:
                self._subscriber.audience.remove(self._holder)
            self._subscriber = found  # first, so that whoever is interrupted leaves it
            if found is not None:
                found.audience.add(self._holder, self._box)
        return self._nonce()

    def _nonce(self) -> str:
        self._listens = self._subscriber is not None and self._subscriber.audience.listens
        return self._waiters.nonce if self._listens else ""

    async def _told(self, seconds: float, *awaited: str, token: bool = False) -> Message | None:
        end = now() + seconds
        while True:
            message = await self._box.get(max(0.0, end - now()))
            if message is None or message in awaited or (token and isinstance(message, int)):
                return message

"""Performs the waiting for locks: lines within the process, and channels to be told on.

See :mod:`fencing.locks.waiting` for what is decided; here are a thread's and a task's way of it,
side by side.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import queue
import secrets
import threading
import weakref
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Self

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.asking import Enter, Listen, Signal
from fencing.locks.permissions import acl_rules
from fencing.locks.subscribing import AsyncSubscriber, Subscriber
from fencing.locks.trouble import REDIS_ERRORS
from fencing.locks.waiting import LOST, READY, TURN, Lines, Message, channel_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from fencing.locks.asking import Waiting
    from fencing.locks.clients import AsyncSibling, Sibling

__all__ = ["AsyncWaiter", "AsyncWaiters", "Waiter", "Waiters"]

_log = logging.getLogger("fencing")

REFUSED_SECONDS = 60.0
"""How long we do not try to listen after Redis has refused it, in seconds."""

AGAIN_SECONDS = 1.0
"""Shortest time from one attempt to listen to the next, in seconds."""

ORPHANS = 1000
"""How many waiters are remembered who gave up, in case that Redis was not told."""


class _Room:
    """What both kinds of waiters have in common."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.forget()
        _rooms.add(self)

    def forget(self) -> None:
        """Begin without anybody who waits, and with a channel of one's own."""
        self.nonce = secrets.token_hex(16)
        self.channel = channel_of(self._namespace, self.nonce)
        self._orphans: OrderedDict[str, str] = OrderedDict()
        self._has_warned = False

    def disown(self, holder: str, resource: str) -> None:
        """Give the lock back as soon as this holder, who has given up, is handed it."""
        self._orphans[holder] = resource
        if len(self._orphans) > ORPHANS:
            self._orphans.popitem(last=False)

    def may_listen(self, ended: Any) -> bool:  # noqa: ANN401 - a subscriber of either kind
        """Whether it is time to listen again, after a subscriber that has ended."""
        if ended is None:
            return True
        if not ended.is_refused:
            return bool(now() >= ended.began_at + AGAIN_SECONDS)
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "waiting for locks falls back to asking once a second, because this process may "
                "not listen to %s (%s); the Redis user needs: %s",
                self.channel,
                ended.failure,
                acl_rules(self._namespace),
            )
        return bool(now() >= ended.began_at + REFUSED_SECONDS)


class Waiters(_Room):
    """Who waits for locks of one service, in this process.

    Args:
        sibling: Makes the connections.
        namespace: What channels begin with.
        give_back: Releases the lock on a resource that a holder was handed who has given up.
    """

    def __init__(
        self, sibling: Sibling, namespace: str, give_back: Callable[[str, str], None]
    ) -> None:
        self._sibling = sibling
        self._give_back = give_back
        super().__init__(namespace)

    def forget(self) -> None:
        """See `_Room.forget`."""
        super().forget()
        self.lock = threading.Lock()
        self.lines: Lines[queue.SimpleQueue[Message]] = Lines()
        self._subscribers: dict[Any, Subscriber[queue.SimpleQueue[Message]]] = {}

    def waiter(self, resource: str, key: bytes) -> Waiter:
        """Somebody who may have to wait for the lock under a key."""
        return Waiter(self, resource, key)

    def subscriber(self, key: bytes, *, start: bool) -> Any:  # noqa: ANN401 - as above
        """Who listens where a key is, if anybody does, or may be started; the lock is held."""
        if not (start or self._subscribers):
            return None
        try:
            node = self._sibling.node_of(key)
        except REDIS_ERRORS:
            return None  # who asks there is told
        found = self._subscribers.get(node)
        if found is not None and not found.audience.over:
            return found
        if not (start and self.may_listen(found)):
            return None
        self._subscribers[node] = Subscriber(
            lambda end: self._sibling.connection_to(node, end), self.channel, self.lock, self._stray
        )
        return self._subscribers[node]

    def close(self) -> None:
        """Listen no more; whoever still waits makes it begin again."""
        with self.lock:
            subscribers = list(self._subscribers.values())
            self._subscribers.clear()
        for subscriber in subscribers:
            subscriber.stop()

    def _stray(self, holder: str) -> None:
        resource = self._orphans.pop(holder, None)
        if resource is not None:
            arguments = (resource, holder)
            threading.Thread(target=self._give_back, args=arguments, daemon=True).start()


class Waiter:
    """One acquisition that may have to wait; at the end of its block it does not any more.

    Ending is the same however often, and from wherever it was interrupted.
    """

    def __init__(self, waiters: Waiters, resource: str, key: bytes) -> None:
        self._waiters = waiters
        self._resource = resource
        self._key = key
        self._box: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._holder = ""
        self._subscriber: Any = None
        self._listens = False

    def perform(self, step: Waiting) -> Signal:
        """Perform a step of waiting."""
        if isinstance(step, Enter):
            self._holder = step.holder
            with self._waiters.lock:
                has_turn = not step.in_line or self._waiters.lines.join(self._resource, self._box)
            if not has_turn:
                self._told(step.seconds, TURN)
            return self._listen(0.0, start=False)
        if isinstance(step, Listen):
            return self._listen(step.seconds, start=True)
        message = self._told(step.seconds, LOST if self._listens else READY, token=True)
        return Signal(now(), token=message if isinstance(message, int) else 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._holder:
            return
        if error is not None:
            self._waiters.disown(self._holder, self._resource)
        with self._waiters.lock:
            if isinstance(error, LockServiceError):
                self._waiters.lines.scatter(self._resource)
            self._waiters.lines.leave(self._resource, self._box)
            if self._subscriber is not None:
                self._subscriber.audience.remove(self._holder)

    def _listen(self, seconds: float, *, start: bool) -> Signal:
        with self._waiters.lock:
            found = self._waiters.subscriber(self._key, start=start)
            if found is not self._subscriber and self._subscriber is not None:
                self._subscriber.audience.remove(self._holder)
            if found is not None:
                found.audience.add(self._holder, self._box)
            self._subscriber = found
        if found is not None and not found.audience.listens:
            self._told(seconds, READY, LOST)
        self._listens = found is not None and found.audience.listens
        return Signal(now(), nonce=self._waiters.nonce if self._listens else "")

    def _told(self, seconds: float, *awaited: str, token: bool = False) -> Message | None:
        """Which of the awaited it is told within so many seconds, if any; or else a token."""
        end = now() + seconds
        while True:
            left = max(0.0, end - now())
            try:
                message = self._box.get(timeout=min(left, threading.TIMEOUT_MAX))
            except queue.Empty:
                return None
            if message in awaited or (token and isinstance(message, int)):
                return message


class AsyncWaiters(_Room):
    """:class:`Waiters` for asyncio."""

    def __init__(
        self, sibling: AsyncSibling, namespace: str, give_back: Callable[[str, str], Any]
    ) -> None:
        self._sibling = sibling
        self._give_back = give_back
        self._giving_back: set[asyncio.Task[None]] = set()
        self._subscribers: dict[Any, AsyncSubscriber[_AsyncBox]] = {}
        super().__init__(namespace)

    def forget(self) -> None:
        """See `_Room.forget`."""
        super().forget()
        # Kept, because a connection that is finalized is taken off its event loop's selector,
        # which a forked child shares with its parent.
        _inherited.extend(self._subscribers.values())
        self._subscribers = {}
        self.lines: Lines[_AsyncBox] = Lines()
        self._loop: asyncio.AbstractEventLoop | None = None

    def waiter(self, resource: str, key: bytes) -> AsyncWaiter:
        """See :meth:`Waiters.waiter`."""
        if self._loop is None or self._loop.is_closed():
            # Whoever waits in a loop that is over would keep his place in line for ever.
            self.lines = Lines()
            self._loop = asyncio.get_running_loop()
        return AsyncWaiter(self, resource, key)

    def subscriber(self, key: bytes, *, start: bool) -> Any:  # noqa: ANN401 - as above
        """See :meth:`Waiters.subscriber`."""
        if not (start or self._subscribers):
            return None
        try:
            node = self._sibling.node_of(key)
        except REDIS_ERRORS:
            return None  # who asks there is told
        found = self._subscribers.get(node)
        if found is not None and found.loop is not asyncio.get_running_loop():
            found = None  # of an event loop that is over
        if found is not None and not found.audience.over:
            return found
        if not (start and self.may_listen(found)):
            return None
        self._subscribers[node] = AsyncSubscriber(
            lambda end: self._sibling.connection_to(node, end), self.channel, self._stray
        )
        return self._subscribers[node]

    async def aclose(self) -> None:
        """See :meth:`Waiters.close`."""
        subscribers = list(self._subscribers.values())
        self._subscribers.clear()
        for subscriber in subscribers:
            if subscriber.loop is asyncio.get_running_loop():
                await subscriber.stop()

    def _stray(self, holder: str) -> None:
        resource = self._orphans.pop(holder, None)
        if resource is not None:
            task = asyncio.ensure_future(self._give_back(resource, holder))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)


class AsyncWaiter:
    """:class:`Waiter` for asyncio."""

    def __init__(self, waiters: AsyncWaiters, resource: str, key: bytes) -> None:
        self._waiters = waiters
        self._resource = resource
        self._key = key
        self._box = _AsyncBox()
        self._holder = ""
        self._subscriber: Any = None
        self._listens = False

    async def perform(self, step: Waiting) -> Signal:
        """See :meth:`Waiter.perform`."""
        if isinstance(step, Enter):
            self._holder = step.holder
            has_turn = not step.in_line or self._waiters.lines.join(self._resource, self._box)
            if not has_turn:
                await self._told(step.seconds, TURN)
            return await self._listen(0.0, start=False)
        if isinstance(step, Listen):
            return await self._listen(step.seconds, start=True)
        awaited = LOST if self._listens else READY
        message = await self._told(step.seconds, awaited, token=True)
        return Signal(now(), token=message if isinstance(message, int) else 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._holder:
            return
        if error is not None:
            self._waiters.disown(self._holder, self._resource)
        if isinstance(error, LockServiceError):
            self._waiters.lines.scatter(self._resource)
        self._waiters.lines.leave(self._resource, self._box)
        if self._subscriber is not None:
            self._subscriber.audience.remove(self._holder)

    async def _listen(self, seconds: float, *, start: bool) -> Signal:
        found = self._waiters.subscriber(self._key, start=start)
        if found is not self._subscriber and self._subscriber is not None:
            self._subscriber.audience.remove(self._holder)
        if found is not None:
            found.audience.add(self._holder, self._box)
        self._subscriber = found
        if found is not None and not found.audience.listens:
            await self._told(seconds, READY, LOST)
        self._listens = found is not None and found.audience.listens
        return Signal(now(), nonce=self._waiters.nonce if self._listens else "")

    async def _told(self, seconds: float, *awaited: str, token: bool = False) -> Message | None:
        end = now() + seconds
        while True:
            message = await self._box.get(max(0.0, end - now()))
            if message is None or message in awaited or (token and isinstance(message, int)):
                return message


class _AsyncBox:
    """A queue of messages that one task waits for."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()
        self._filled: asyncio.Future[None] | None = None

    def put(self, message: Message) -> None:
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


_inherited: list[Any] = []
_rooms: weakref.WeakSet[_Room] = weakref.WeakSet()


def _forget_the_parent_s() -> None:
    for room in list(_rooms):
        room.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s)

"""Performs the waiting for locks: lines within the process, and channels to be told on.

See :mod:`fencing.locks.redis.waiting` for what is decided; here are a thread's and a task's way of
it, side by side.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from fencing.clock import now
from fencing.locks.lines import AsyncBox, Lines, Message, Threads
from fencing.locks.redis.permissions import acl_rules
from fencing.locks.redis.subscribing import AsyncSubscriber, Subscriber
from fencing.locks.redis.trouble import REDIS_ERRORS
from fencing.locks.redis.waiting import STRAY_SECONDS, channel_of

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable

    from fencing.locks.redis.clients import AsyncSibling, Sibling

__all__ = ["AsyncWaiters", "Waiters"]

_log = logging.getLogger("fencing")

REFUSED_SECONDS = 60.0
"""How long we do not try to listen after Redis has refused it, in seconds."""

AGAIN_SECONDS = 1.0
"""Shortest time from one attempt to listen to the next, in seconds; but for one in that time."""

ORPHANS = 1000
"""How many waiters are remembered who gave up, in case that Redis was not told.

By number, not by age: to know them costs nothing. What costs is to read for them while nobody
waits, which is done for ``STRAY_SECONDS``.
"""


WANTED = 1000
"""How many resources are remembered that somebody has waited for, of late."""


class _Room:
    """What both kinds of waiters have in common.

    Attributes:
        wanted: The resources that somebody waited for when they were last asked for or released.
        subscribers: Who listens, by what a sibling calls the node; empty: nobody does.
    """

    _sibling: Any
    subscribers: dict[Any, Any]

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self.forget()
        _rooms.add(self)

    def forget(self) -> None:
        """Begin without anybody who waits, and with a channel of one's own."""
        self.nonce = secrets.token_hex(16)
        self.channel = channel_of(self._namespace, self.nonce)
        self._orphans: OrderedDict[str, str] = OrderedDict()
        self._strays_until = -math.inf
        self.wanted: dict[str, None] = {}
        self._has_warned = False
        self._has_warned_of_silence = False
        self._again_at = -math.inf

    def is_where(self, key: bytes, subscriber: Any) -> bool:  # noqa: ANN401 - of either kind
        """Whether a subscriber listens where a key is, as far as is known by now."""
        try:
            node = self._sibling.node_of(key)
        except REDIS_ERRORS:
            return True  # who asks there is told
        return self.subscribers.get(node) is subscriber

    def disown(self, holder: str, resource: str) -> None:
        """Give the lock back as soon as this holder, who has given up, is handed it."""
        self._orphans[holder] = resource
        self._strays_until = now() + STRAY_SECONDS
        if len(self._orphans) > ORPHANS:
            self._orphans.popitem(last=False)

    def expects_strays(self) -> bool:
        """Whether somebody who has given up may be handed a lock yet, as far as is known."""
        return bool(self._orphans) and now() < self._strays_until

    def note_wanted(self, resource: str, *, wanted: bool) -> None:
        """Somebody waits for a resource, or nobody did when it was released."""
        self.wanted.pop(resource, None)
        if wanted:
            self.wanted[resource] = None
            for oldest in list(self.wanted)[:-WANTED]:
                self.wanted.pop(oldest, None)

    def note_silence(self, why: str) -> None:
        """Whoever waited for a lock that was released could not be told of it; warn once."""
        if not self._has_warned_of_silence:
            self._has_warned_of_silence = True
            _log.warning(
                "a lock that was released was not handed to who waits for it, because this "
                "process may not tell of it (%s): whoever waits asks once a second, and in no "
                "order; the Redis user needs: %s",
                why,
                acl_rules(self._namespace),
            )

    def may_listen(self, ended: Any) -> bool:  # noqa: ANN401 - a subscriber of either kind
        """Whether it is time to listen again, after a subscriber that has ended."""
        if ended is None:
            return True
        if not ended.is_refused:
            at = now()
            if at < ended.began_at + AGAIN_SECONDS:
                # A connection that was lost early (CLIENT KILL) shall not cost anybody his place
                # in the queue; one that is lost again and again shall not keep us busy.
                if at < self._again_at + AGAIN_SECONDS or not ended.has_listened:
                    return False
                self._again_at = at
            return True
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
        # Reentrant, for a signal handler may close the service while its thread is in here. What it
        # acquires meanwhile does without all that this protects.
        self.lock = threading.RLock()
        self.threads = Threads()
        self.lines: Lines[queue.SimpleQueue[Message]] = Lines()
        self.subscribers: dict[Any, Subscriber] = {}

    @property
    def has_lock(self) -> bool:
        """Whether this thread has the lock: a signal handler's caller asks."""
        owned: bool = self.lock._is_owned()  # type: ignore[attr-defined] # noqa: SLF001 - as threading.Condition asks
        return owned

    def subscriber(self, key: bytes, *, start: bool) -> Any:  # noqa: ANN401 - as above
        """Who listens where a key is, if anybody does, or may be started; the lock is held."""
        try:
            node = self._sibling.node_of(key)
        except REDIS_ERRORS:
            return None  # who asks there is told
        found = self.subscribers.get(node)
        if found is not None and not found.audience.over:
            return found
        if not (start and self.may_listen(found)):
            return None
        try:
            made = Subscriber(
                lambda end: self._sibling.connection_to(node, end),
                self.channel,
                self.lock,
                self._stray,
                self.expects_strays,
            )
        except (OSError, RuntimeError):
            return None  # no file or thread is to be had now; who waits asks now and then
        self.subscribers[node] = made
        return made

    def disown(self, holder: str, resource: str) -> None:
        """See `_Room.disown`; whoever is listened to from now on may be told of this holder."""
        super().disown(holder, resource)
        for subscriber in list(self.subscribers.values()):
            subscriber.read_for_strays()

    def close(self) -> None:
        """Listen no more; whoever still waits makes it begin again."""
        self.threads.enter(self)
        try:
            with self.lock:
                subscribers = list(self.subscribers.values())
                self.subscribers.clear()
            for subscriber in subscribers:
                subscriber.stop()
        finally:
            self.threads.leave(self)

    def _stray(self, holder: str) -> None:
        resource = self._orphans.pop(holder, None)
        if resource is None:
            return
        try:
            arguments = (resource, holder)
            threading.Thread(target=self._give_back, args=arguments, daemon=True).start()
        except RuntimeError:
            # No thread is to be had, which is no matter of who reads this; the lock ends soon.
            self._orphans[holder] = resource


class AsyncWaiters(_Room):
    """:class:`Waiters` for asyncio."""

    def __init__(
        self, sibling: AsyncSibling, namespace: str, give_back: Callable[[str, str], Any]
    ) -> None:
        self._sibling = sibling
        self._give_back = give_back
        self._giving_back: set[asyncio.Task[None]] = set()
        self.subscribers: dict[Any, AsyncSubscriber[AsyncBox]] = {}
        super().__init__(namespace)

    def forget(self) -> None:
        """See `_Room.forget`."""
        super().forget()
        # Kept, because a connection that is finalized is taken off its event loop's selector,
        # which a forked child shares with its parent.
        _inherited.extend(self.subscribers.values())
        self.subscribers = {}
        self.lines: Lines[AsyncBox] = Lines()
        self._loop: asyncio.AbstractEventLoop | None = None

    def leave_closed_loop(self) -> None:
        """Begin without those who wait in a loop that is over: they would stay in line for ever."""
        if self._loop is None or self._loop.is_closed():
            self.lines = Lines()
            self._loop = asyncio.get_running_loop()

    def subscriber(self, key: bytes, *, start: bool) -> Any:  # noqa: ANN401 - as above
        """See :meth:`Waiters.subscriber`."""
        try:
            node = self._sibling.node_of(key)
        except REDIS_ERRORS:
            return None  # who asks there is told
        found = self.subscribers.get(node)
        if found is not None and found.loop is not asyncio.get_running_loop():
            found = None  # of an event loop that is over
        if found is not None and not found.audience.over:
            return found
        if not (start and self.may_listen(found)):
            return None
        self.subscribers[node] = AsyncSubscriber(
            lambda end: self._sibling.connection_to(node, end), self.channel, self._stray
        )
        return self.subscribers[node]

    async def aclose(self) -> None:
        """See :meth:`Waiters.close`."""
        subscribers = list(self.subscribers.values())
        self.subscribers.clear()
        for subscriber in subscribers:
            if subscriber.loop is asyncio.get_running_loop():
                await subscriber.stop()

    def _stray(self, holder: str) -> None:
        resource = self._orphans.pop(holder, None)
        if resource is not None:
            task = asyncio.ensure_future(self._give_back(resource, holder))
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)


_inherited: list[Any] = []
_rooms: weakref.WeakSet[_Room] = weakref.WeakSet()


def _forget_the_parent_s() -> None:
    for room in list(_rooms):
        room.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s)

"""Listening for being called: one connection for all who wait in this process.

It lives as long as somebody waits, and for ``HEARTBEAT_SECONDS`` of silence more. When it ends, for
whatever reason, those who wait go on by asking once a second, and the next of them begins another.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic

from fencing.clock import now
from fencing.errors import FencingError
from fencing.locks.lines import AsyncBox, BoxT, Lines, Message, Threads
from fencing.locks.postgres.acquiring import LISTEN_SECONDS
from fencing.locks.postgres.trouble import POSTGRES_ERRORS
from fencing.locks.postgres.wire import async_ready, exchange, exchange_async, ready
from fencing.schema.names import CHANNEL, holder_name

if TYPE_CHECKING:
    import queue
    from contextlib import AbstractContextManager

    from fencing.locks.postgres.connections import AsyncConnections, Connections, Link

__all__ = ["AsyncRoom", "Room"]

_log = logging.getLogger("fencing")

HEARTBEAT_SECONDS = 5.0
"""After how long a silence the connection is tested, in seconds."""

AGAIN_SECONDS = 1.0
"""Shortest time from one attempt to listen to the next, in seconds."""

POOLED_SECONDS = 60.0
"""The same where a pooler stands in between, in seconds."""

_LISTEN = f"LISTEN {CHANNEL}".encode()
_TEST = b"SELECT 1"

CALLED = "called"
"""The resource is free, and it is one's turn."""

READY = "ready"
"""Its process listens now."""

LOST = "lost"
"""Its process does not listen any more."""


class _Listener(Generic[BoxT]):
    """Who is told what is said on the channel.

    Attributes:
        listens: Whether it is listened to.
        over: Whether that has ended.
        pooled: Whether it ended since a pooler stands in between.
        began_at: When it was begun (:func:`fencing.clock.now`, seconds).
    """

    def __init__(self) -> None:
        self.listens = self.over = self.pooled = False
        self.began_at = now()
        self._boxes: dict[str, BoxT] = {}

    def add(self, holder: str, box: BoxT) -> None:
        """Whoever waits as this holder is told from now on."""
        self._boxes[holder_name(holder)] = box

    def remove(self, holder: str) -> None:
        """Nobody waits as this holder any more."""
        self._boxes.pop(holder_name(holder), None)

    @property
    def needed(self) -> bool:
        """Whether anybody waits."""
        return bool(self._boxes)

    @property
    def may_follow(self) -> bool:
        """Whether it is time for another one after this, which has ended."""
        pause = POOLED_SECONDS if self.pooled else AGAIN_SECONDS
        return now() >= self.began_at + pause

    def _tell_all(self, message: Message) -> None:
        for box in list(self._boxes.values()):
            box.put(message)

    def _begin(self) -> None:
        self.listens = True
        self._tell_all(READY)

    def _end(self) -> None:
        self.listens, self.over = False, True
        self._tell_all(LOST)
        self._boxes.clear()

    def _hear(self, link: Link) -> None:
        while (notification := link.pgconn.notifies()) is not None:
            box = self._boxes.get(notification.extra.decode(errors="replace"))
            if box is not None:
                box.put(CALLED)

    def _note_pooler(self) -> None:
        self.pooled = True
        _log.info(
            "a pooler stands between this process and PostgreSQL, so nobody can be called: "
            "waiting for locks asks once a second"
        )


class Listener(_Listener["queue.SimpleQueue[Message]"]):
    """Listens in a daemon thread.

    Args:
        connections: What the connection is made like.
        lock: Held when those who are told change.
    """

    def __init__(self, connections: Connections, lock: AbstractContextManager[Any]) -> None:
        super().__init__()
        self._connections = connections
        self._lock = lock
        self._stopped = False
        self._waking, self._awake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="fencing waiting", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._stopped = True
        with contextlib.suppress(OSError):  # it has ended already
            self._waking.send(b"!")
        if self._thread is not threading.current_thread():
            self._thread.join(LISTEN_SECONDS)

    def _run(self) -> None:
        link: Link | None = None
        try:
            link = self._connections.connect(now() + LISTEN_SECONDS)
            if link.pooled:
                self._note_pooler()
            else:
                self._listen(link)
        except (*POSTGRES_ERRORS, FencingError):
            pass  # those who ask are told
        finally:
            with self._lock:
                self._end()
            if link is not None:
                link.close()
            self._waking.close()
            self._awake.close()

    def _listen(self, link: Link) -> None:
        exchange(link.pgconn, _LISTEN, [], now() + LISTEN_SECONDS)
        with self._lock:
            self._begin()
        while not self._stopped:
            self._hear(link)
            end = now() + HEARTBEAT_SECONDS
            if ready(link.pgconn.socket, end, also=self._awake.fileno()):
                link.pgconn.consume_input()
                continue
            with self._lock:
                if not self.needed:
                    self._end()
                    return
            exchange(link.pgconn, _TEST, [], now() + HEARTBEAT_SECONDS)


class AsyncListener(_Listener[AsyncBox]):
    """`Listener` for asyncio: listens in a task."""

    def __init__(self, connections: AsyncConnections) -> None:
        super().__init__()
        self._connections = connections
        self.loop = asyncio.get_running_loop()
        self._task = self.loop.create_task(self._run(), name="fencing waiting")

    async def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        link: Link | None = None
        try:
            link = await self._connections.connect(now() + LISTEN_SECONDS)
            if link.pooled:
                self._note_pooler()
            else:
                await self._listen(link)
        except (*POSTGRES_ERRORS, FencingError):
            pass  # those who ask are told
        finally:
            self._end()
            if link is not None:
                link.close()

    async def _listen(self, link: Link) -> None:
        await exchange_async(link.pgconn, _LISTEN, [], now() + LISTEN_SECONDS)
        self._begin()
        while True:
            self._hear(link)
            if await async_ready(link.pgconn.socket, now() + HEARTBEAT_SECONDS):
                link.pgconn.consume_input()
                continue
            if not self.needed:
                return
            await exchange_async(link.pgconn, _TEST, [], now() + HEARTBEAT_SECONDS)


class _Room:
    """Where those are who wait for locks of one service; what both kinds have in common."""

    def __init__(self) -> None:
        self.forget()
        _rooms.add(self)

    def forget(self) -> None:
        """Begin without anybody who waits, in a forked child."""
        raise NotImplementedError


class Room(_Room):
    """Who waits, in threads.

    Args:
        connections: What the connection to listen on is made like.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        super().__init__()

    def forget(self) -> None:
        """See `_Room.forget`."""
        # Reentrant, for a signal handler may close the service while its thread is in here. What it
        # acquires meanwhile does without all that this protects.
        self.lock = threading.RLock()
        self.threads = Threads()
        self.lines: Lines[queue.SimpleQueue[Message]] = Lines()
        self._listener: Listener | None = None

    def listener(self) -> Listener | None:
        """Who listens; begun if need be, unless it is too early. The lock is held."""
        found = self._listener
        if found is None or (found.over and found.may_follow):
            self._listener = found = Listener(self._connections, self.lock)
        return None if found.over else found

    def close(self) -> None:
        """Listen no more; whoever still waits makes it begin again."""
        self.threads.enter(self)
        try:
            with self.lock:
                found, self._listener = self._listener, None
            if found is not None:
                found.stop()
        finally:
            self.threads.leave(self)


class AsyncRoom(_Room):
    """Who waits, in tasks."""

    def __init__(self, connections: AsyncConnections) -> None:
        self._connections = connections
        self._listener: AsyncListener | None = None
        super().__init__()

    def forget(self) -> None:
        """See `_Room.forget`."""
        if self._listener is not None:
            # Kept, because what is collected is taken off its event loop's selector, which a forked
            # child shares with its parent.
            _inherited.append(self._listener)
        self.lines: Lines[AsyncBox] = Lines()
        self._listener = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def enter(self) -> None:
        """Somebody comes to wait: whoever waited in a loop that is over does so no more."""
        if self._loop is None or self._loop.is_closed():
            self.lines = Lines()
            self._loop = asyncio.get_running_loop()

    def listener(self) -> AsyncListener | None:
        """See :meth:`Room.listener`."""
        found = self._listener
        if found is not None and found.loop is not asyncio.get_running_loop():
            found = None  # of an event loop that is over
        if found is None or (found.over and found.may_follow):
            self._listener = found = AsyncListener(self._connections)
        return None if found.over else found

    async def aclose(self) -> None:
        """See :meth:`Room.close`."""
        found, self._listener = self._listener, None
        if found is not None and found.loop is asyncio.get_running_loop():
            await found.stop()


_inherited: list[Any] = []
_rooms: weakref.WeakSet[_Room] = weakref.WeakSet()


def _forget_the_parent_s() -> None:
    for room in list(_rooms):
        room.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s)

# ruff: noqa: ANN401 - redis-py leaves its pools and connections untyped
"""The connections of a service that wait for their next call: the sync and the async stack.

A call gets one that is connected and has nothing unread on it: one that Redis has closed meanwhile,
or that leads to a primary that is one no more, is opened anew. A caller who finds all in use waits,
and gets the next one that is free before those who come after him.

Only who has a connection to himself closes it. One that is in use while the service is closed is
closed when it is given back: under a call's hands, its number in the operating system might
already be that of another connection, whose answers are somebody else's.

An interrupt may come between any two steps, so nothing depends on what was to be done next. A
connection is counted for as long as anybody has it: dropped on the way, it is closed, and leaves
its place to another. And whoever waits looks again, once in a while, whether he was passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

from redis.exceptions import MaxConnectionsError

from fencing.clock import now
from fencing.interrupts import begins_in_its_try
from fencing.locks.redis.bounded import call_end
from fencing.locks.redis.connections import made_by

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["AllInUseError", "AsyncConnectionStack", "ConnectionStack"]

_FOR_THE_ANSWER = 0.25
"""Part of a call's time that is not waited for a connection."""

BACKSTOP = 1.0
"""How often a thread that waits looks whether an interrupt has made somebody pass it over, in s."""


def _wait_ends(end: float) -> float:
    """Until when to wait for a connection, in a call that is to be over by ``end``.

    Redis is to have time to answer, so that who has only waited for a connection is told so.
    """
    return end - _FOR_THE_ANSWER * max(0.0, end - now())


class AllInUseError(MaxConnectionsError):
    """Somebody has waited for a connection in vain.

    Args:
        size: How many there are.
        busy: Whether others, who had them, were answered meanwhile.
    """

    def __init__(self, size: int, *, busy: bool) -> None:
        super().__init__(f"{size} connections were in use all the time")
        self.busy = busy


class _Turn:
    """A thread's place among those who wait.

    Attributes:
        connection: What has come, if it has.
    """

    def __init__(self) -> None:
        self.connection: Any = None
        self._waits = threading.Lock()
        self._waits.acquire()

    def come(self, connection: Any) -> None:
        """Give it a connection."""
        self.connection = connection
        self._waits.release()

    def wait(self, end: float) -> bool:
        """Wait; return whether it has come by then."""
        return self._waits.acquire(timeout=min(max(0.0, end - now()), threading.TIMEOUT_MAX))


class _AsyncTurn:
    """A task's place among those who wait."""

    def __init__(self) -> None:
        self.connection: Any = None
        self._came = asyncio.Event()

    def come(self, connection: Any) -> None:
        self.connection = connection
        self._came.set()

    async def wait(self, end: float) -> bool:
        try:
            async with asyncio.timeout(max(0.0, end - now())):
                await self._came.wait()
        except TimeoutError:
            return False
        return True


class _Stack:
    """What both have in common.

    Args:
        pool: Says how they are made; at most its ``max_connections``.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._size: int = pool.max_connections
        self._has_a_primary: bool = getattr(pool, "is_master", False)
        self._dropped = _caller_of(weakref.WeakMethod(self._forget_one))
        self.forget()
        _stacks.add(self)

    def forget(self) -> None:
        """Begin without a connection, as a forked child must."""
        self._made: list[weakref.ref[Any]] = []
        self._idle: list[Any] = []
        self._waiting: deque[Any] = deque()
        self._served = 0  # how often one has come back, from who was answered, while others waited
        self._lock: AbstractContextManager[Any] = contextlib.nullcontext()

    def give_back(self, connection: Any) -> None:
        """Let the next caller have it."""
        self._idle.append(connection)
        if self._waiting:
            self._served += connection.is_open()
            self._hand_on()

    def connections(self) -> list[Any]:
        """All that there are, connected or not, idle or in use."""
        return [one for each in list(self._made) if (one := each()) is not None]

    def _is_outdated(self, connection: Any) -> bool:
        # Sentinel may have told another connection of a new primary.
        return (not connection.is_wanted or not connection.is_quiet()) or (
            self._has_a_primary and self._pool.master_address != (connection.host, connection.port)
        )

    def _want_none(self) -> None:
        for connection in self.connections():
            connection.is_wanted = False

    def _take_idle(self, taken: list[Any]) -> None:
        with contextlib.suppress(IndexError):
            while True:
                taken.append(self._idle.pop())

    def _put_back(self, taken: list[Any]) -> None:
        self._idle.extend(reversed(taken))
        self._hand_on()

    def _queue(self, turn: Any) -> None:
        with self._lock:
            self._waiting.append(turn)
        self._hand_on()

    def _hand_on(self) -> None:
        with self._lock:
            while self._waiting:
                try:
                    connection = self._idle.pop()
                except IndexError:
                    if len(self._made) >= self._size and not self._forget_dropped():
                        return
                    connection = self._make()
                try:
                    turn = self._waiting.popleft()
                except IndexError:  # a signal handler's call was in here, and has served it
                    self.give_back(connection)
                    return
                turn.come(connection)

    def _make(self) -> Any:
        connection = made_by(self._pool)
        self._made.append(weakref.ref(connection, self._dropped))
        return connection

    def _forget_one(self, gone: weakref.ref[Any]) -> None:
        with contextlib.suppress(ValueError):  # another process's, or event loop's
            self._made.remove(gone)
        self._hand_on()

    def _forget_dropped(self) -> bool:
        """Look for those of which nobody was told; whether there were any.

        Python swallows an interrupt that comes while it tells that one is gone.
        """
        before = len(self._made)
        for each in [each for each in self._made if each() is None]:
            with contextlib.suppress(ValueError):
                self._made.remove(each)
        return len(self._made) < before

    def _leave(self, turn: Any) -> None:
        """Wait no longer; if the turn has come at this very moment, it is the next one's."""
        with contextlib.suppress(ValueError), self._lock:
            self._waiting.remove(turn)
        if turn.connection is not None:
            self.give_back(turn.connection)


def _caller_of(method: weakref.WeakMethod[Any]) -> Callable[[Any], None]:
    """What calls a method as long as there is its object, which it does not keep alive."""

    def call(argument: Any) -> None:
        if (bound := method()) is not None:
            bound(argument)

    return call


class ConnectionStack(_Stack):
    """Connections for threads."""

    def forget(self) -> None:
        """See `_Stack.forget`."""
        super().forget()
        self._lock = threading.RLock()  # a signal handler may call, too

    def take(self, end: float) -> Any:
        """A connection that is connected by ``end``, to be given back.

        Raises:
            MaxConnectionsError: All were in use for too long.
            RedisError: It could not be connected.
        """
        try:
            connection = self._wait(end) if self._waiting else self._idle.pop()
        except IndexError:
            connection = self._wait(end)
        try:
            if self._has_a_primary or not connection.is_ready():
                if self._is_outdated(connection):
                    connection.disconnect()
                if not connection.is_open():
                    self._connect(connection, end)
        except BaseException:
            self.give_back(connection)
            raise
        return connection

    @begins_in_its_try
    def give_back(self, connection: Any, *, in_step: bool = True) -> None:
        """Let the next caller have it; closed, if it is no use, or nobody wants it any more.

        Args:
            connection: One that was taken.
            in_step: Whether no answers may be on their way, and it does not lead astray.
        """
        try:
            connection.until = math.inf
            if not in_step:
                connection.is_wanted = False  # whatever comes: who gets it closes it first
            if not connection.is_wanted:
                connection.disconnect()
        finally:
            # Also when an interrupt comes: what handles it needs a connection, and as long as it
            # is handled, its traceback would keep this one.
            self._idle.append(connection)
        if self._waiting:
            self._served += connection.is_open()
            self._hand_on()
        if not connection.is_wanted:  # who closes them has looked before it was there
            self._close_idle()

    def close(self) -> None:
        """Close those that are idle, and have the others closed when they are given back."""
        self._want_none()
        self._close_idle()

    def _close_idle(self) -> None:
        taken: list[Any] = []
        try:
            self._take_idle(taken)
            for connection in taken:
                connection.disconnect()
        finally:
            self._put_back(taken)

    def _wait(self, end: float) -> Any:
        turn, served = _Turn(), self._served
        last = _wait_ends(end)
        try:
            self._queue(turn)
            while not turn.wait(min(last, now() + BACKSTOP)):
                if now() >= last:
                    raise AllInUseError(self._size, busy=self._served != served)  # noqa: TRY301 - to leave the queue, too
                self._look_after(turn)
        except BaseException:
            self._leave(turn)
            raise
        return turn.connection

    def _look_after(self, turn: _Turn) -> None:
        with self._lock:
            if turn.connection is None and turn not in self._waiting:
                self._waiting.appendleft(turn)  # who took it from there came no further
        self._hand_on()

    def _connect(self, connection: Any, end: float) -> None:
        connecting = call_end.set(end)
        try:
            connection.connect()
        finally:
            call_end.reset(connecting)


class AsyncConnectionStack(_Stack):
    """`ConnectionStack` for asyncio."""

    def __init__(self, pool: Any) -> None:
        self._made = []  # what forget() keeps
        self._loop: asyncio.AbstractEventLoop | None = None
        super().__init__(pool)

    def forget(self) -> None:
        """See `_Stack.forget`."""
        # Kept for ever: when one is finalized, it is taken off its event loop's selector, which
        # the child shares with its parent.
        _inherited.extend(self.connections())
        super().forget()
        self._pool.reset()

    def leave_closed_loop(self) -> None:
        """Begin without a connection where those that there are belong to a loop that is over."""
        loop = asyncio.get_running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_closed():
            super().forget()
            self._pool.reset()
        self._loop = loop

    async def aclose(self) -> None:
        """See `ConnectionStack.close`."""
        self.leave_closed_loop()
        self._want_none()
        taken: list[Any] = []
        try:
            self._take_idle(taken)
            for connection in taken:
                await connection.disconnect()
        finally:
            self._put_back(taken)

    def take_ready(self) -> Any:
        """A connection, if there is one that needs no waiting for; otherwise None."""
        if asyncio.get_running_loop() is not self._loop:
            self.leave_closed_loop()
        if self._waiting or not self._idle:
            return None
        connection = self._idle.pop()
        if connection.is_ready() and not (self._has_a_primary and self._is_outdated(connection)):
            return connection
        self._idle.append(connection)
        return None

    async def take(self, end: float) -> Any:
        """See `ConnectionStack.take`."""
        self.leave_closed_loop()
        connection = await self._wait(end)
        try:
            async with asyncio.timeout(max(0.0, end - now())):
                if self._is_outdated(connection):
                    await connection.disconnect(nowait=True)
                await connection.connect()
        except BaseException:
            self.give_back(connection)
            raise
        return connection

    async def _wait(self, end: float) -> Any:
        turn, served = _AsyncTurn(), self._served
        try:
            self._queue(turn)
            if not await turn.wait(_wait_ends(end)):
                raise AllInUseError(self._size, busy=self._served != served)  # noqa: TRY301 - to leave the queue, too
        except BaseException:
            self._leave(turn)
            raise
        return turn.connection

    def _forget_one(self, gone: weakref.ref[Any]) -> None:
        # Perhaps in another thread, by Python's collecting of garbage.
        loop = self._loop
        with contextlib.suppress(RuntimeError):  # the loop is over
            if loop is not None:
                loop.call_soon_threadsafe(super()._forget_one, gone)


_inherited: list[Any] = []
_stacks: weakref.WeakSet[_Stack] = weakref.WeakSet()


def _forget_the_parent_s() -> None:
    for stack in list(_stacks):
        stack.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s)

"""Listening to one channel on one node of Redis: in threads, or in a task.

One connection, made like the client's others, for all waiters of a lock service that the node
concerns. It lives as long as somebody waits, and for ``HEARTBEAT_SECONDS`` of silence more. When it
ends, for whatever reason, its audience is told so; :mod:`fencing.locks.redis.listening` makes
another.

In threads it has one *reader* at a time::

    nobody ──waits, alone──► a waiter ──is told, or asks──► nobody, if nobody else is there
                 ▲               └──────────────────────► the thread, if there are others
                 └───waits, alone──────────────────────────┘

A message that passes from one thread to another costs more than all the rest of hearing it. So
whoever waits alone reads for himself. The thread connects, sees to it that the connection is alive,
and reads while several wait, or somebody who has given up may still be handed a lock; it is woken
for that, and otherwise sleeps. In asyncio what comes is heard as soon as the event loop has it.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import redis

from fencing.clock import now
from fencing.locks.redis.reading import Bell, Lines, Told, Wire, readable
from fencing.locks.redis.trouble import REDIS_ERRORS
from fencing.locks.redis.waiting import LISTEN_SECONDS, Audience, Box, Message

if TYPE_CHECKING:
    import queue
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["AsyncSubscriber", "Subscriber"]

HEARTBEAT_SECONDS = 5.0
"""After how long a silence the connection is tested, in seconds; given up after as long again."""

_SHORTEST = 0.001
"""What a waiter waits for his box alone, in seconds: sockets are waited for in milliseconds."""

PING = b"*1\r\n$4\r\nPING\r\n"

BoxT = TypeVar("BoxT", bound=Box)


class _Subscriber(Generic[BoxT]):
    """What both kinds have in common.

    Args:
        channel: What to listen to.
        stray: Called with a holder that was handed a lock, and that nobody waits as.

    Attributes:
        audience: Who is told what is said.
        began_at: When it was made (:func:`fencing.clock.now`, seconds).
        failure: What it ended by, if that was no loss of the connection.
    """

    def __init__(self, channel: str, stray: Callable[[str], None]) -> None:
        self.audience: Audience[BoxT] = Audience()
        self.began_at = now()
        self.failure: BaseException | None = None
        self._connection: Any = None
        self._channel = channel
        self._stray = stray
        self._heard_at = self._tested_at = self.began_at

    @property
    def has_listened(self) -> bool:
        """Whether Redis has ever confirmed it."""
        return self.audience.has_listened

    @property
    def is_refused(self) -> bool:
        """Whether Redis does not let us listen."""
        return isinstance(self.failure, redis.ResponseError)

    def _hear(self, lines: Lines) -> None:
        """Pass on what has come; if that is interrupted, the next one goes on with it."""
        if self.audience.over:
            # Whoever waited has been told, and asks. asyncio's TLS goes on taking what comes until
            # the other end has closed, too.
            return
        come = lines.come
        self._heard_at = now()
        if come and not self.audience.listens:
            _check(come[0])
            self.audience.begin()
        while come:
            if (holder := self.audience.hear(come[0])) is not None:
                self._stray(holder)
            come.popleft()

    @property
    def _due(self) -> float:
        """When it has been silent for so long that something must be done."""
        return max(self._heard_at, self._tested_at) + HEARTBEAT_SECONDS

    @property
    def _is_over(self) -> bool:
        """Whether, now that something must be done, there is nothing left to do but to end it."""
        return self._tested_at > self._heard_at or not self.audience


def _check(first: bytes) -> None:
    if first.startswith(b"-"):
        kind = redis.exceptions.NoPermissionError if b"NOPERM" in first else redis.ResponseError
        raise kind(first[1:].decode(errors="replace"))


class Subscriber(_Subscriber["queue.SimpleQueue[Message]"]):
    """Listens in a daemon thread, and in the threads of those who wait.

    Args:
        connect: Makes a connection to the node, connected by a moment of the clock.
        channel: What to listen to.
        lock: Held when the audience changes, and while somebody reads what has come.
        stray: Called with a holder that was handed a lock, and that nobody waits as.
        expects_strays: Whether somebody who has given up may be handed a lock yet.
    """

    def __init__(
        self,
        connect: Callable[[float], Any],
        channel: str,
        lock: AbstractContextManager[Any],
        stray: Callable[[str], None],
        expects_strays: Callable[[], bool],
    ) -> None:
        super().__init__(channel, stray)
        self._connect = connect
        self._lock = lock
        self._expects_strays = expects_strays
        self._wire: Wire | None = None
        self._reader: object = self  # ourselves: the thread; a waiter's box; None: nobody
        self._bell = Bell()
        self._is_done = False
        self._thread = threading.Thread(target=self._run, name="fencing waiting", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until it has ended."""
        with self._lock:
            self._end()
        if self._thread is not threading.current_thread():
            self._thread.join(LISTEN_SECONDS)

    def read_for(
        self,
        box: queue.SimpleQueue[Message],
        end: float,
        other: queue.SimpleQueue[Message] | None = None,
    ) -> None:
        """Read until something is in a waiter's box, or it is time; not at all if another does.

        Who is told something goes on as the reader until he says that he is not: mostly he leaves
        at once, and then it is said along with that.

        Args:
            box: Of one who is in the audience.
            end: Until when, to the millisecond (:func:`fencing.clock.now`, seconds).
            other: That of one who stands still in this thread, and may be the reader.
        """
        is_told = False
        try:
            is_told = self._takes_over(box, other) and self._reads_until(box, end)
        finally:
            if not is_told:
                self.let_go(box)

    def _takes_over(
        self, box: queue.SimpleQueue[Message], other: queue.SimpleQueue[Message] | None
    ) -> bool:
        with self._lock:
            if self.audience.over:
                return False
            if self._reader is self and self.audience.listens and len(self.audience) == 1:
                self._bell.ring()  # what comes from now on the thread leaves alone
                self._reader = box
            elif self._reader is None:
                self._reader = box
            return self._reader is box or (other is not None and self._reader is other)

    def _reads_until(self, box: queue.SimpleQueue[Message], end: float) -> bool:
        wire = self._wire
        while wire is not None and box.empty() and not self.audience.over:
            left = end - now()
            if left < _SHORTEST:
                return False
            wire.wait(left)
            with self._lock:
                self._take_in(wire)
        return True

    def let_go(self, box: queue.SimpleQueue[Message]) -> None:
        """Read no more for a waiter. To be called as often as one likes."""
        if self._reader is box:
            with self._lock:
                if self._reader is box:  # still, whatever a signal handler has done
                    self._pass_on(others=len(self.audience) > 1)

    def dismiss(self, holder: str, box: queue.SimpleQueue[Message]) -> None:
        """A waiter waits no more; the lock is held. To be called as often as one likes."""
        self.audience.remove(holder)
        if self._reader is box:
            self._pass_on(others=len(self.audience) > 0)

    def _pass_on(self, *, others: bool) -> None:
        """Have the thread read if that is needed: it is told before anything changes."""
        if self._is_done:
            self._connection.disconnect()
        elif others or self._expects_strays():
            self._bell.ring()
            self._reader = self
            return
        self._reader = None

    def read_for_strays(self) -> None:
        """Read, although nobody waits."""
        with self._lock:
            if self._reader is None:
                self._pass_on(others=False)

    def _run(self) -> None:
        try:
            connection = self._connection = self._connect(now() + LISTEN_SECONDS)
            connection.send_command("SUBSCRIBE", self._channel, check_health=False)
            self._wire = Wire(connection._sock)  # noqa: SLF001 - redis-py has no public way to its socket
            self._listen(self._wire)
        except REDIS_ERRORS as error:
            self.failure = error
        finally:
            with self._lock:
                self._end()
                self._is_done = True
                # Who reads closes it: under his hands, its number in the operating system might
                # already be that of another connection.
                if self._connection and (self._reader is None or self._reader is self):
                    self._connection.disconnect()
                self._bell.close()  # in here, as it is rung: its number may soon be another's

    def _listen(self, wire: Wire) -> None:
        while not self.audience.over:
            left = max(0.0, self._due - now())
            if self._reader is self:
                wire.wait(left, self._bell)
            else:
                readable(left, self._bell)
            self._bell.silence()
            with self._lock:
                # Before it is judged, also what a waiter would read who is kept from it just now.
                if self._reader is None or self._reader is self or now() >= self._due:
                    was_confirmed = self.audience.listens
                    self._take_in(wire)
                    if self.audience.listens and not was_confirmed:
                        self._pass_on(others=False)  # who waits comes, and reads
                if now() >= self._due:
                    self._look_after(wire)

    def _take_in(self, wire: Wire) -> None:
        """Hear what has come; the lock is held."""
        if self.audience.over:
            return
        try:
            goes_on = wire.receive()
        except OSError as error:
            self.failure, goes_on = error, False
        if wire.lines.come:
            self._hear(wire.lines)
        if not goes_on:
            self._end()

    def _look_after(self, wire: Wire) -> None:
        if self._is_over:
            self._end()
        else:
            wire.send(PING)
            self._tested_at = now()

    def _end(self) -> None:
        """Listen no more, and have whoever reads notice; the lock is held."""
        self.audience.end()
        if self._wire is not None:
            self._wire.shut_down()
        self._bell.ring()


class AsyncSubscriber(_Subscriber[BoxT]):
    """`Subscriber` for asyncio: listens in a task, and in the event loop."""

    def __init__(
        self, connect: Callable[[float], Any], channel: str, stray: Callable[[str], None]
    ) -> None:
        super().__init__(channel, stray)
        self._connect = connect
        self.loop = asyncio.get_running_loop()
        self._task = self.loop.create_task(self._run(), name="fencing waiting")

    async def stop(self) -> None:
        """End it, and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait({self._task})
        self.audience.end()  # which a task that had not begun yet could not tell

    async def _run(self) -> None:
        try:
            self._connection = await self._connect(now() + LISTEN_SECONDS)
            await self._listen()
        except REDIS_ERRORS as error:
            self.failure = error
        finally:
            self.audience.end()
            if self._connection is not None:
                await self._connection.disconnect(nowait=True)

    async def _listen(self) -> None:
        # Before anything can be said there, so that nothing is where it was read from before.
        told = Told(self._connection._writer.transport, self._hear)  # noqa: SLF001 - redis-py has no public way to it
        await self._connection.send_command("SUBSCRIBE", self._channel, check_health=False)
        while not told.over.done():
            await asyncio.wait({told.over}, timeout=max(0.0, self._due - now()))
            if told.over.done() or now() < self._due:
                continue
            if self._is_over:
                return
            self._tested_at = now()  # before, for the answer may be there before the loop is back
            await self._connection.send_command("PING", check_health=False)
        told.over.result()

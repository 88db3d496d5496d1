"""Performs the steps of a call on ZooKeeper: the sync and the async shell, side by side.

They share one session and one way to ask, which never blocks; what differs is how one waits for an
answer: a thread for an event, a task for a future that kazoo's thread sets through its loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.asking import Pause, Trouble
from fencing.locks.lines import AsyncBox, Lines, Message, Threads
from fencing.locks.performing import go_through, go_through_async, see_through
from fencing.locks.zookeeper.asking import Ask, Line, Reply, Sweep, Wait
from fencing.locks.zookeeper.batches import Batch
from fencing.locks.zookeeper.trouble import silence, trouble_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fencing.locks.zookeeper.asking import Operation, Step, Steps
    from fencing.locks.zookeeper.session import Session

__all__ = ["AsyncPerformer", "Performer"]

T = TypeVar("T")


class Performer:
    """Performs calls in a session."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._form_lines()

    def _form_lines(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._lines: Lines[queue.SimpleQueue[Message]] = Lines()
        self._threads = Threads()

    def perform_in_line(self, call: Callable[[bool], Steps[T]], resource: str) -> T:
        """Perform an acquisition that may have to wait, behind others of this process.

        What a signal handler acquires stands in no line; see `Threads`.

        Args:
            call: Made of whether others are before it.
            resource: What it acquires.
        """
        if self._pid != os.getpid():
            self._form_lines()  # those of a parent process wait there
        box: queue.SimpleQueue[Message] = queue.SimpleQueue()
        try:
            try:
                return self.perform(call(self._is_behind_others(resource, box)), box)
            except LockServiceError:
                self._leave(resource, box, scatter=True)
                raise
            finally:
                self._leave(resource, box)
        finally:
            self._leave(resource, box)  # an interrupt may have come before the other one was done

    def _is_behind_others(self, resource: str, box: queue.SimpleQueue[Message]) -> bool:
        if self._threads.enter(box) is not box:
            return False
        with self._lock:
            return not self._lines.join(resource, box)

    def _leave(
        self, resource: str, box: queue.SimpleQueue[Message], *, scatter: bool = False
    ) -> None:
        if not self._threads.has(box):
            return
        with self._lock:
            if scatter:
                self._lines.scatter(resource)
            self._lines.leave(resource, box)
        self._threads.leave(box)

    def perform(self, call: Steps[T], box: queue.SimpleQueue[Message] | None = None) -> T:
        """Perform the steps of a call; return or raise what it does."""
        told = threading.Event()

        def changed(_: object) -> None:
            told.set()

        def perform(step: Step) -> object:
            match step:
                case Ask(operations, within):
                    return _reply(self._asked(operations, within, changed), within, self._session)
                case Wait(seconds):
                    told.wait(seconds)
                    told.clear()
                case Line(seconds) if box is not None:
                    with contextlib.suppress(queue.Empty):
                        box.get(timeout=min(seconds, threading.TIMEOUT_MAX))
                case Sweep(parent, holder, seconds):
                    swept = threading.Event()
                    self._session.sweep(parent, holder, swept.set)
                    swept.wait(seconds)
                case Pause(seconds):
                    time.sleep(seconds)
            return now()

        try:
            return go_through(call, perform)
        finally:
            self._session.unwatch(changed)

    def ask_together(self, operations: Sequence[Operation], within: float) -> list[Reply | Trouble]:
        """Ask all at once, and once; return what came of each."""
        return _each(self._asked(operations, within, None), within, self._session)

    def _asked(self, operations: Sequence[Operation], within: float, watch: Any) -> Batch:  # noqa: ANN401 - `Batch` has its type
        done = threading.Event()
        batch = Batch(operations, done.set, watch)
        try:
            self._session.ask(batch)
            done.wait(within)
        finally:
            if not batch.is_done:
                self._session.forget(batch)
        return batch


class AsyncPerformer:
    """:class:`Performer` for asyncio."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: Lines[AsyncBox] = Lines()
        self._pid = os.getpid()
        self._acquiring: dict[asyncio.AbstractEventLoop, dict[str, str]] = {}

    async def acquire(self, call: Steps[T], parent: str, holder: str) -> T:
        """Perform an acquisition that stands in no line.

        Args:
            call: Its steps.
            parent: Under which node its own will be.
            holder: Its nonce.
        """
        with self._swept_if_dropped(parent, holder):
            return await self.perform(call)

    async def acquire_in_line(
        self, call: Callable[[bool], Steps[T]], resource: str, parent: str, holder: str
    ) -> T:
        """Perform an acquisition that may have to wait, behind others of this process.

        Args:
            call: Made of whether others are before it.
            resource: What it acquires.
            parent: Under which node its own will be.
            holder: Its nonce.
        """
        with self._swept_if_dropped(parent, holder):
            return await self._perform_in_line(call, resource)

    @contextlib.contextmanager
    def _swept_if_dropped(self, parent: str, holder: str) -> Iterator[None]:
        """See to it that nothing is left of an acquisition whose task is never finished.

        The session belongs to no loop and lives on, and with it a waiter's node.
        """
        loop = asyncio.get_running_loop()
        self._sweep_after_closed_loops()
        holders = self._acquiring.setdefault(loop, {})
        holders[holder] = parent
        try:
            yield
        except BaseException as error:
            # Without its loop it could not clean up itself, whatever it was ended by.
            if isinstance(error, GeneratorExit) or loop.is_closed():
                self._session.sweep(parent, holder, _nobody_waits)
            raise
        finally:
            holders.pop(holder, None)

    def _sweep_after_closed_loops(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._acquiring = os.getpid(), {}  # a parent process sees to its own
        for loop in [loop for loop in list(self._acquiring) if loop.is_closed()]:
            for holder, parent in self._acquiring.pop(loop, {}).items():
                self._session.sweep(parent, holder, _nobody_waits)

    async def _perform_in_line(self, call: Callable[[bool], Steps[T]], resource: str) -> T:
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._lines = loop, Lines()  # nobody of an earlier loop waits any more
        lines, box = self._lines, AsyncBox()
        try:
            try:
                is_first = lines.join(resource, box)
                return await self.perform(call(not is_first), box)
            except LockServiceError:
                lines.scatter(resource)
                raise
            finally:
                lines.leave(resource, box)
        finally:
            lines.leave(resource, box)  # an interrupt may have come before the other one was done

    async def perform(self, call: Steps[T], box: AsyncBox | None = None) -> T:
        """See :meth:`Performer.perform`."""
        self._sweep_after_closed_loops()
        told = _AsyncEvent()

        def changed(_: object) -> None:
            told.set()

        async def perform(step: Step) -> object:
            match step:
                case Ask(operations, within):
                    batch = await heeding(self._asked(operations, within, changed))
                    return _reply(batch, within, self._session)
                case Wait(seconds):
                    await heeding(told.wait(seconds))
                    told.clear()
                case Line(seconds) if box is not None:
                    await heeding(box.get(seconds))
                case Sweep(parent, holder, seconds):
                    await see_through(self._swept(parent, holder, seconds))
                case Pause(seconds):
                    await asyncio.sleep(seconds)
            return now()

        try:
            return await go_through_async(call, perform)
        finally:
            self._session.unwatch(changed)

    async def ask_together(
        self, operations: Sequence[Operation], within: float
    ) -> list[Reply | Trouble]:
        """See :meth:`Performer.ask_together`."""
        batch = await heeding(self._asked(operations, within, None))
        return _each(batch, within, self._session)

    async def _asked(self, operations: Sequence[Operation], within: float, watch: Any) -> Batch:  # noqa: ANN401 - as above
        done = _AsyncEvent()
        batch = Batch(operations, done.set, watch)
        try:
            self._session.ask(batch)
            await done.wait(within)
        finally:
            if not batch.is_done:
                self._session.forget(batch)
        return batch

    async def _swept(self, parent: str, holder: str, seconds: float) -> None:
        swept = _AsyncEvent()
        self._session.sweep(parent, holder, swept.set)
        await swept.wait(seconds)


class _AsyncEvent:
    """An event of a loop that other threads may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed; nobody waits
            self._loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, seconds: float) -> None:
        """Wait until it is set, for so many seconds at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()


def _nobody_waits() -> None:
    """What is done is told to nobody."""


def _reply(batch: Batch, within: float, session: Session) -> Reply:
    at = now()
    if not batch.is_done:
        raise _unanswered(within, session, at)
    for came in batch.came:
        if isinstance(came, BaseException):
            raise trouble_of(came, at=at)
    return Reply(batch.came, batch.asked_at, at)


def _unanswered(within: float, session: Session, at: float) -> Trouble:
    failure = None if session.connected else session.failure
    if failure is not None:
        return trouble_of(failure, at=at)
    return silence(within, session.hosts, connected=session.connected, at=at)


def _each(batch: Batch, within: float, session: Session) -> list[Reply | Trouble]:
    at = now()
    unanswered = _unanswered(within, session, at)
    came: list[Reply | Trouble] = []
    for each in batch.came:
        if each is None:
            came.append(unanswered)
        elif isinstance(each, BaseException):
            came.append(trouble_of(each, at=at))
        else:
            came.append(Reply([each], batch.asked_at, at))
    return came

"""Performs the steps of a call on etcd: the sync and the async shell, side by side.

They differ in nothing but ``await``, except that an async clean-up is seen through even while its
task is being cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.asking import Pause
from fencing.locks.etcd import requests
from fencing.locks.etcd.asking import Ask, Line, Rank, Signal, Watch
from fencing.locks.etcd.ranks import Ranks
from fencing.locks.etcd.transport import AsyncTransport, Transport
from fencing.locks.lines import AsyncBox, Lines, Message, Threads
from fencing.locks.performing import go_through, go_through_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.locks.etcd.address import Address
    from fencing.locks.etcd.asking import Step, Steps

__all__ = ["AsyncPerformer", "Performer"]

T = TypeVar("T")

_Box: TypeAlias = queue.SimpleQueue[Message]
_Line: TypeAlias = Lines[_Box]


class Performer:
    """Performs calls on an etcd."""

    def __init__(self, address: Address) -> None:
        self._transport = Transport(address)
        self.forget()
        _performers.add(self)

    def forget(self) -> None:
        """Begin without anybody who waits: a child has none of its parent's threads."""
        self._lock = threading.Lock()
        self._threads = Threads()
        self._lines: _Line = Lines()
        self._entrances: _Line = Lines()
        self._ranks: Ranks[_Box] = Ranks()

    def close(self) -> None:
        """Close the connections; another call opens them again."""
        self._transport.close()

    def perform(self, call: Steps[T]) -> T:
        """Perform the steps of a call; return or raise what it does."""
        return go_through(call, self._step)

    def perform_waiting(self, call: Callable[[bool], Steps[T]], resource: str, *, fair: bool) -> T:
        """Perform the steps of an acquisition that may have to wait.

        What a signal handler acquires stands in no line, and watches for itself; see `Threads`.

        Args:
            call: Made with whether others of this process are before it.
            resource: What it acquires.
            fair: Whether it has a place of its own, or stands in line behind them.
        """
        box: _Box = queue.SimpleQueue()

        def told(seconds: float) -> None:
            with contextlib.suppress(queue.Empty):
                box.get(timeout=min(seconds, threading.TIMEOUT_MAX))

        def perform(step: Step) -> object:
            if isinstance(step, Line):
                if not is_next:
                    told(step.seconds)
                return Signal(now())
            if isinstance(step, Rank):
                is_first = self._rank(line, resource, step.revision, box)
                if not is_first:
                    told(step.seconds)
                    is_first = self._rank(line, resource, step.revision, box)
                return Signal(now(), failed=not is_first)
            return self._step(step)

        line = self._entrances if fair else self._lines
        is_next = False
        try:
            try:
                is_next, alone = self._enter(line, resource, box, fair=fair)
                return go_through(call(not alone), perform)
            except LockServiceError:
                self._leave(line, resource, box, scatter=True)
                raise
            finally:
                self._leave(line, resource, box)
        finally:  # an interrupt may have come before the other one was done
            self._leave(line, resource, box)

    def _enter(self, line: _Line, resource: str, box: _Box, *, fair: bool) -> tuple[bool, bool]:
        """Come to wait; whether one is the next of a line, and whether nobody is before one."""
        if self._threads.enter(box) is not box:
            return True, True
        with self._lock:
            is_next = line.join(resource, box)
            return is_next, is_next and not (fair and resource in self._ranks)

    def _rank(self, line: _Line, resource: str, revision: int, box: _Box) -> bool:
        """Have a rank instead of a place in line; whether it is the first."""
        if not self._threads.has(box):
            return True
        with self._lock:
            line.leave(resource, box)
            return self._ranks.take(resource, revision, box)

    def _leave(self, line: _Line, resource: str, box: _Box, *, scatter: bool = False) -> None:
        """Wait no more. To be called as often as one likes."""
        if not self._threads.has(box):
            return
        with self._lock:
            if scatter:
                line.scatter(resource)
            line.leave(resource, box)
            self._ranks.leave(resource, box)
        self._threads.leave(box)

    def _step(self, step: Step) -> object:
        if isinstance(step, Ask):
            return self._transport.ask(step.path, step.body, now() + step.within)
        if isinstance(step, Watch):
            body = requests.watch(step.key, step.revision)
            done = self._transport.watch(body, now() + step.seconds)
            return Signal(now(), failed=not done)
        if isinstance(step, Pause):
            time.sleep(step.seconds)
        return now()


class AsyncPerformer:
    """:class:`Performer` for asyncio."""

    def __init__(self, address: Address) -> None:
        self._transport = AsyncTransport(address)
        self.forget()
        _performers.add(self)

    def forget(self) -> None:
        """See :meth:`Performer.forget`."""
        self._lines: Lines[AsyncBox] = Lines()
        self._entrances: Lines[AsyncBox] = Lines()
        self._ranks: Ranks[AsyncBox] = Ranks()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        """See :meth:`Performer.close`."""
        await self._transport.aclose()

    async def perform(self, call: Steps[T]) -> T:
        """See :meth:`Performer.perform`."""
        return await go_through_async(call, self._step)

    async def perform_waiting(
        self, call: Callable[[bool], Steps[T]], resource: str, *, fair: bool
    ) -> T:
        """See :meth:`Performer.perform_waiting`."""
        box = AsyncBox()
        if self._loop is not asyncio.get_running_loop():
            # Whoever waits in a loop that is over would keep his place in line for ever.
            self.forget()
            self._loop = asyncio.get_running_loop()
        line, ranks = self._entrances if fair else self._lines, self._ranks

        async def perform(step: Step) -> object:
            if isinstance(step, Line):
                if not is_next:
                    await box.get(step.seconds)
                return Signal(now())
            if isinstance(step, Rank):
                line.leave(resource, box)
                is_first = ranks.take(resource, step.revision, box)
                if not is_first:
                    await box.get(step.seconds)
                    is_first = ranks.take(resource, step.revision, box)
                return Signal(now(), failed=not is_first)
            return await self._step(step)

        is_next = False
        try:
            try:
                is_next = line.join(resource, box)
                alone = is_next and not (fair and resource in ranks)
                return await go_through_async(call(not alone), perform)
            except LockServiceError:
                line.scatter(resource)
                raise
            finally:
                line.leave(resource, box)
                ranks.leave(resource, box)
        finally:  # an interrupt may have come before the other one was done
            line.leave(resource, box)
            ranks.leave(resource, box)

    async def _step(self, step: Step) -> object:
        if isinstance(step, Ask):
            return await heeding(self._transport.ask(step.path, step.body, now() + step.within))
        if isinstance(step, Watch):
            body = requests.watch(step.key, step.revision)
            done = await heeding(self._transport.watch(body, now() + step.seconds))
            return Signal(now(), failed=not done)
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
        return now()


_performers: weakref.WeakSet[Performer | AsyncPerformer] = weakref.WeakSet()


def _forget_the_parent_s() -> None:
    for performer in list(_performers):
        performer.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_the_parent_s)

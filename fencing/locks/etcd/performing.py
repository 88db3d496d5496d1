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
from typing import TYPE_CHECKING, TypeVar

from fencing.cancelling import heeding
from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.asking import Pause
from fencing.locks.etcd import requests
from fencing.locks.etcd.asking import Ask, Line, Signal, Watch
from fencing.locks.etcd.transport import AsyncTransport, Transport
from fencing.locks.lines import AsyncBox, Lines, Message
from fencing.locks.performing import go_through, go_through_async, see_through

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.locks.etcd.address import Address
    from fencing.locks.etcd.asking import Step, Steps

__all__ = ["AsyncPerformer", "Performer"]

T = TypeVar("T")


class Performer:
    """Performs calls on an etcd."""

    def __init__(self, address: Address) -> None:
        self._transport = Transport(address)
        self.forget()
        _performers.add(self)

    def forget(self) -> None:
        """Begin without anybody who waits: a child has none of its parent's threads."""
        self._lock = threading.Lock()
        self._lines: Lines[queue.SimpleQueue[Message]] = Lines()

    def close(self) -> None:
        """Close the connections; another call opens them again."""
        self._transport.close()

    def perform(self, call: Steps[T]) -> T:
        """Perform the steps of a call; return or raise what it does."""
        return go_through(call, self._step)

    def perform_in_line(self, call: Callable[[bool], Steps[T]], resource: str) -> T:
        """Perform the steps of an acquisition that stands in line behind others of this process.

        Args:
            call: Made with whether there are any.
            resource: What it acquires.
        """
        box: queue.SimpleQueue[Message] = queue.SimpleQueue()

        def perform(step: Step) -> object:
            if isinstance(step, Line):
                with contextlib.suppress(queue.Empty):
                    box.get(timeout=min(step.seconds, threading.TIMEOUT_MAX))
                return Signal(now())
            return self._step(step)

        try:
            with self._lock:
                is_first = self._lines.join(resource, box)
            return go_through(call(not is_first), perform)
        except LockServiceError:
            with self._lock:
                self._lines.scatter(resource)
            raise
        finally:
            with self._lock:
                self._lines.leave(resource, box)

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
        self._loop: asyncio.AbstractEventLoop | None = None

    async def aclose(self) -> None:
        """See :meth:`Performer.close`."""
        await self._transport.aclose()

    async def perform(self, call: Steps[T]) -> T:
        """See :meth:`Performer.perform`."""
        return await go_through_async(call, self._step)

    async def perform_in_line(self, call: Callable[[bool], Steps[T]], resource: str) -> T:
        """See :meth:`Performer.perform_in_line`."""
        box = AsyncBox()

        async def perform(step: Step) -> object:
            if isinstance(step, Line):
                await box.get(step.seconds)
                return Signal(now())
            return await self._step(step)

        if self._loop is not asyncio.get_running_loop():
            # Whoever waits in a loop that is over would keep his place in line for ever.
            self.forget()
            self._loop = asyncio.get_running_loop()
        lines = self._lines
        is_first = lines.join(resource, box)
        try:
            return await go_through_async(call(not is_first), perform)
        except LockServiceError:
            lines.scatter(resource)
            raise
        finally:
            lines.leave(resource, box)

    async def _step(self, step: Step) -> object:
        if isinstance(step, Ask):
            work = heeding(self._transport.ask(step.path, step.body, now() + step.within))
            return await (see_through(work) if step.see_through else work)
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

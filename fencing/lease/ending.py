"""The end of something, which threads and tasks wait for, and how long they do."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["AsyncEnding", "Ending"]


class Ending:
    """Told once, to every thread that waits for it.

    Unlike a `threading.Event` it has no lock that a thread holds while it begins to wait: a signal
    handler may tell it to its own thread, at any moment.
    """

    def __init__(self) -> None:
        self._waiting: list[threading.Lock] = []
        self._has_come = False

    def set(self) -> None:
        """It has come."""
        self._has_come = True
        self.wake()

    def wake(self) -> None:
        """Have those who wait look how long they are to wait now."""
        for alarm in self._waiting.copy():
            with contextlib.suppress(RuntimeError):  # it was told already
                alarm.release()

    def wait(self, seconds: Callable[[], float]) -> None:
        """Wait until it has come, or one is woken, or for so many seconds.

        Args:
            seconds: How many; asked when whoever changes that from then on wakes us.
        """
        alarm = threading.Lock()
        alarm.acquire()
        self._waiting.append(alarm)
        try:
            if not self._has_come:  # and who sets it from now on finds the alarm
                alarm.acquire(timeout=max(0.0, min(seconds(), threading.TIMEOUT_MAX)))
        finally:
            self._waiting.remove(alarm)


class AsyncEnding:
    """:class:`Ending` for asyncio."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """See :meth:`Ending.set`."""
        self._event.set()

    def wake(self) -> None:
        """See :meth:`Ending.wake`."""
        if not self._event.is_set():
            woken, self._event = self._event, asyncio.Event()
            woken.set()

    async def wait(self, seconds: Callable[[], float]) -> None:
        """See :meth:`Ending.wait`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, seconds())):
                await self._event.wait()

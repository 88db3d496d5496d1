"""Calls a function when something on an agenda is due: in a thread, and in the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic

from fencing.clock import now
from fencing.keepalive.agenda import Agenda, E

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LoopTicker", "ThreadTicker"]

_log = logging.getLogger("fencing")

_LONGEST_SLEEP = 1.0
"""Longest sleep, in seconds: sleeping does not count the time that a machine is suspended for."""

_IDLE_SECONDS = 5.0
"""How long a thread waits for something to do before it ends, in seconds."""


class ThreadTicker(Generic[E]):
    """Calls ``act`` with what is due, in a daemon thread that runs while there is something.

    Args:
        name: Of the thread.
        act: Called with entries that were taken off the agenda.
    """

    def __init__(self, name: str, act: Callable[[list[E]], None]) -> None:
        self._name = name
        self._act = act
        self._begin_anew()
        _tickers.add(self)

    def _begin_anew(self) -> None:
        """With nothing to do and no thread; in a forked child nobody can have held the lock."""
        self.agenda: Agenda[E] = Agenda()
        # Reentrant, because a signal handler may release a lease while its thread is in here.
        self._lock = threading.RLock()
        self._alarm = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    def put(self, entry: E, due: float) -> None:
        """Have an entry due then, and not at another moment."""
        with self._lock:
            self.agenda.put(entry, due)
            if self._thread is None:
                self._start()
            elif due < self._wakes_at:
                self._wake()

    def drop(self, entry: E) -> None:
        """Take an entry off."""
        with self._lock:
            self.agenda.drop(entry)

    def clear(self) -> int:
        """Take everything off, and let the thread end; return how many leases it concerns."""
        with self._lock:
            size = self.agenda.leases
            self.agenda.clear()
            self._thread = None  # it ends when it finds that it is not this one any more
            self._wake()
            return size

    def _start(self) -> None:
        # Whoever lets it go wakes the thread. A Condition takes longer, and who was just handed a
        # lock would have to wait for that.
        alarm = threading.Lock()
        alarm.acquire()
        thread = threading.Thread(target=self._run, args=(alarm,), name=self._name, daemon=True)
        thread.start()  # it waits for the lock
        self._alarm, self._thread = alarm, thread

    def _wake(self) -> None:
        """Have the thread look, if it sleeps; the lock is held."""
        self._wakes_at = -math.inf
        with contextlib.suppress(RuntimeError):  # it does not sleep
            self._alarm.release()

    def _run(self, alarm: threading.Lock) -> None:
        me = threading.current_thread()
        try:
            self._go_on(me, alarm)
        finally:
            with self._lock:
                if self._thread is me:
                    self._thread = None

    def _go_on(self, me: threading.Thread, alarm: threading.Lock) -> None:
        idle_since = wakes_at = now()
        while True:
            with self._lock:
                if self._thread is not me:
                    return
                self._wakes_at = -math.inf  # it does not sleep
                due = self.agenda.take(now())
                if not due:
                    if self.agenda:
                        idle_since = now()
                    elif now() - idle_since > _IDLE_SECONDS:
                        self._thread = None
                        return
                    self._wakes_at = wakes_at = min(self.agenda.next, now() + _LONGEST_SLEEP)
            if due:
                try:
                    self._act(due)
                except Exception:  # noqa: BLE001 - whatever it is, it must not end the thread
                    _log.exception("%s failed", self._name)
                idle_since = now()
            else:
                alarm.acquire(timeout=max(0.0, wakes_at - now()))


class LoopTicker(Generic[E]):
    """Calls ``act`` with what is due, in the event loop that entries are put in from.

    By timers, not in a task: nothing is left pending when the loop ends.
    """

    def __init__(self, act: Callable[[list[E]], None]) -> None:
        self._act = act
        self.agenda: Agenda[E] = Agenda()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = math.inf
        self._pid = os.getpid()

    def put(self, entry: E, due: float) -> None:
        """See `ThreadTicker.put`."""
        running = asyncio._get_running_loop()  # noqa: SLF001 - documented, for event loops
        if running is not None and (running is not self._loop or self._pid != os.getpid()):
            # What another loop has acquired, it alone could renew.
            self.clear()
            self._loop, self._pid = running, os.getpid()
        self.agenda.put(entry, due)
        if running is not None:
            self._arm()
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing is due any more
                self._loop.call_soon_threadsafe(self._arm)

    def drop(self, entry: E) -> None:
        """See `ThreadTicker.drop`."""
        self.agenda.drop(entry)

    def clear(self) -> int:
        """See `ThreadTicker.clear`."""
        size = self.agenda.leases
        self.agenda.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._wakes_at = None, math.inf
        return size

    def _arm(self) -> None:
        due = min(self.agenda.next, now() + _LONGEST_SLEEP)
        if self._loop is None or not self.agenda or due >= self._wakes_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at = due
        self._timer = self._loop.call_later(max(0.0, due - now()), self._tick)

    def _tick(self) -> None:
        self._timer, self._wakes_at = None, math.inf
        due = self.agenda.take(now())
        try:
            if due:
                self._act(due)
        finally:
            self._arm()


_tickers: weakref.WeakSet[ThreadTicker[Any]] = weakref.WeakSet()


def _after_fork() -> None:
    for ticker in list(_tickers):
        ticker._begin_anew()  # noqa: SLF001 - ours


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

"""The end of something, which threads wait for."""

from __future__ import annotations

import contextlib
import threading

__all__ = ["Ending"]


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
        for alarm in self._waiting.copy():
            with contextlib.suppress(RuntimeError):  # it was told already
                alarm.release()

    def wait(self, seconds: float) -> None:
        """Wait until it has come, or for so many seconds."""
        alarm = threading.Lock()
        alarm.acquire()
        self._waiting.append(alarm)
        try:
            if not self._has_come:  # and who sets it from now on finds the alarm
                alarm.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        finally:
            self._waiting.remove(alarm)

"""The clock that leases are trusted by.

A lease must run out while its machine is suspended, too: Redis goes on counting. On Linux
``time.monotonic`` (``CLOCK_MONOTONIC``) stands still during a suspend and ``CLOCK_BOOTTIME`` does
not (clock_gettime(2)); on macOS it is ``CLOCK_MONOTONIC`` that goes on counting while Python's
``time.monotonic`` (``mach_absolute_time``) stops (clock_gettime(3)). A stopped process (SIGSTOP)
is no problem to any of them.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["now"]


def _clock_id() -> int | None:
    boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None and sys.platform == "darwin":
        boottime = time.CLOCK_MONOTONIC
    return boottime


_CLOCK_ID = _clock_id()

# No function of ours, because it is called a dozen times for a lock that is taken and given back.
now: Callable[[], float] = (
    time.monotonic if _CLOCK_ID is None else partial(time.clock_gettime, _CLOCK_ID)
)
"""Seconds on a monotonic clock that also counts while the machine is suspended."""

"""Signals that end a command, as a shell tells them and as a ``with`` block should see them."""

from __future__ import annotations

import signal
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["DIED_OF_SIGNAL", "ending_on_interrupt", "leaving_on_signals"]

DIED_OF_SIGNAL = 128  # plus the signal's number: the exit status


@contextmanager
def ending_on_interrupt() -> Iterator[None]:
    """Let Ctrl-C, once the block has cleaned up, end the process as one that died of SIGINT.

    Without a word: who has interrupted it knows.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(DIED_OF_SIGNAL + signal.SIGINT)


@contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP leave the block as Ctrl-C does, so that it cleans up.

    Both end the process with the status of one that died of that signal.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(DIED_OF_SIGNAL + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

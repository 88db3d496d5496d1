"""Cancelling the task in a block, and taking that cancellation back at the block's end.

As ``asyncio.timeout`` does it: a task counts the cancellations asked of it, so that one from
outside is told from ours even when both came.
"""

from __future__ import annotations

import asyncio

__all__ = ["CancelledBlock"]


class CancelledBlock:
    """A block of the running task that may be cancelled, once."""

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - called in a coroutine
        self._task = task
        self._before = task.cancelling()
        self._cancelled = False

    def cancel(self) -> None:
        """Cancel its task, unless that was done."""
        if not self._cancelled:
            self._cancelled = True
            self._task.cancel()

    def end(self, body: BaseException | None) -> bool:
        """The block has ended, with this exception; whether our cancellation, alone, ended it."""
        if not self._cancelled:
            self._cancelled = True  # too late for one
            return False
        left = self._task.uncancel()
        return left <= self._before and isinstance(body, asyncio.CancelledError)

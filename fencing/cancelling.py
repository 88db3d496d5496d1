"""Cancelling the task in a block and taking that back at its end; and heeding a cancellation.

As ``asyncio.timeout`` does it: a task counts the cancellations asked of it, so that one from
outside is told from ours even when both came, and one that was swallowed is noticed.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

__all__ = ["CancelledBlock", "heeding"]

T = TypeVar("T")


async def heeding(work: Awaitable[T]) -> T:
    """Await work; a cancellation that comes meanwhile is raised even if the work swallows it.

    Before Python 3.12 ``asyncio.wait_for``, by which redis-py connects and sends, swallows one that
    comes when it is done. The task would go on as if nobody wanted it to end.
    """
    task = asyncio.current_task()
    before = task.cancelling() if task else 0
    try:
        outcome = await work
    except Exception as error:
        if task and task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
    if task and task.cancelling() > before:
        raise asyncio.CancelledError
    return outcome


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
            with contextlib.suppress(RuntimeError):  # its loop is closed: it does not go on anyway
                self._task.cancel()

    def end(self, body: BaseException | None) -> bool:
        """The block has ended, with this exception; whether our cancellation, alone, ended it."""
        if not self._cancelled:
            self._cancelled = True  # too late for one
            return False
        left = self._task.uncancel()
        return left <= self._before and isinstance(body, asyncio.CancelledError)

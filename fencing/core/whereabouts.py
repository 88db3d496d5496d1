"""Where something was begun: in which thread, and in which task."""

from __future__ import annotations

import asyncio
import threading
import weakref

__all__ = ["Whereabouts", "current_task", "running_loop"]


class Whereabouts:
    """A thread, and the task in it if there is one: who would be waiting for himself.

    Args:
        task: The one that is running now; see `current_task`.
    """

    __slots__ = ("_task", "_thread")

    def __init__(self, task: asyncio.Task[object] | None) -> None:
        # References, not idents: those are used again when a thread or task has ended.
        self._thread = weakref.ref(threading.current_thread())
        self._task = None if task is None else weakref.ref(task)

    def is_here(self) -> bool:
        """Whether this is the thread and task that is running now."""
        task = current_task()
        if self._thread() is not threading.current_thread():
            return False
        return task is None if self._task is None else self._task() is task


# asyncio.current_task() raises where no loop runs, which takes longer than all the rest.
running_loop = asyncio._get_running_loop  # noqa: SLF001 - documented, for event loops


def current_task() -> asyncio.Task[object] | None:
    """The running task; ``None`` where no event loop runs."""
    loop = running_loop()
    return None if loop is None else asyncio.current_task(loop)

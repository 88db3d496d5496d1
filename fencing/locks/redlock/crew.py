"""Threads that ask one node, as many as there are requests at a time.

Not those of ``concurrent.futures``: whoever hands them work holds a lock, for which a signal
handler on the same thread, that releases a lease say, would wait in vain. Nothing here is locked.
Sets and queues are what they are at any moment; if a thread too few is started once, work waits for
the next.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Crew", "Job"]

THREADS = 32
"""How many may wait for the answers of one node; further requests wait for one of them."""

IDLE_SECONDS = 10.0
"""How long a thread waits for work before it ends, in seconds."""


class Job:
    """A piece of work, to be waited for."""

    def __init__(self, work: Callable[[], None], done: set[Job]) -> None:
        self._work = work
        self._undone = done
        self._ended = threading.Event()
        done.add(self)

    def run(self) -> None:
        """Do it; it raises nothing."""
        try:
            self._work()
        finally:
            self._undone.discard(self)
            self._ended.set()

    def wait(self) -> None:
        """Wait until it is done."""
        self._ended.wait()

    @property
    def is_done(self) -> bool:
        """Whether it is."""
        return self._ended.is_set()


class Crew:
    """The threads for one node; daemons that end when there is nothing to do.

    Args:
        name: Of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: set[threading.Thread] = set()
        self._busy: set[threading.Thread] = set()
        self._undone: set[Job] = set()

    def submit(self, work: Callable[[], None]) -> Job:
        """Have work done, soon and elsewhere; at once and here if no thread can be started."""
        job = Job(work, self._undone)
        self._jobs.put(job)
        threads = len(self._threads)
        if self._jobs.qsize() > threads - len(self._busy) and threads < THREADS:
            self._start()
        return job

    def close(self) -> None:
        """Wait for what is being done, and let the threads go; more work starts new ones."""
        for job in list(self._undone):
            job.wait()
        for _ in list(self._threads):
            self._jobs.put(None)

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._threads.add(thread)
        try:
            thread.start()
        except RuntimeError:
            # The system has no more threads, or the interpreter is being shut down.
            self._threads.discard(thread)
            if not self._threads:
                self._work_off()

    def _work_off(self) -> None:
        while True:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            if job is not None:
                job.run()

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while (job := self._next(me)) is not None:
                self._busy.add(me)
                job.run()
                del job  # and what it holds, until there is another
                self._busy.discard(me)
        finally:
            self._busy.discard(me)
            self._threads.discard(me)

    def _next(self, me: threading.Thread) -> Job | None:
        with contextlib.suppress(queue.Empty):
            if (job := self._jobs.get(timeout=IDLE_SECONDS)) is not None:
                return job
        self._threads.discard(me)
        # What was submitted before that has counted on us; it may be behind what sends threads
        # away, of which there is too much when several close at once.
        job, goodbyes = None, 0
        with contextlib.suppress(queue.Empty):
            while (job := self._jobs.get_nowait()) is None:
                goodbyes += 1
        for _ in range(min(goodbyes, len(self._threads))):
            self._jobs.put(None)
        if job is not None:
            self._threads.add(me)
        return job

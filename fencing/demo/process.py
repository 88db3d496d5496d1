"""A worker process, as its parent sees it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import queue
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fencing.errors import FencingError

if TYPE_CHECKING:
    from types import TracebackType

    from fencing.demo.worker import Order

__all__ = ["DemonstrationError", "Report", "Worker"]


class DemonstrationError(FencingError):
    """The demonstration could not be given."""


@dataclass(frozen=True, slots=True)
class Report:
    """Something that has happened.

    Attributes:
        who: ``"A"`` or ``"B"``.
        event: What it was.
        at: When, in seconds of :func:`fencing.clock.now`.
        facts: What else is known about it.
    """

    who: str
    event: str
    at: float
    facts: dict[str, Any] = field(default_factory=dict)


class Worker:
    """A process that carries out orders; killed when the block is left.

    Its process group is its own, so that Ctrl-C is its parent's to handle. Its session is not: if
    the parent is killed, it ends with its input, or, while stopped, by the SIGHUP that the kernel
    sends to a stopped group that nobody is left to continue.

    Args:
        name: ``"A"`` or ``"B"``.
        module: The program.
    """

    def __init__(self, name: str, module: str = "fencing.demo.worker") -> None:
        self.name = name
        self._buffer = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(  # noqa: S603 - a module of ours
            # -P and our own path: it imports what we import, and nothing from where it was started.
            [sys.executable, "-P", "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            process_group=0,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
            },
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send(self, order: Order) -> None:
        """Have it carry out an order, after those it was given before.

        Raises:
            DemonstrationError: It has ended.
        """
        assert self._process.stdin is not None  # noqa: S101 - a pipe
        try:
            self._process.stdin.write(json.dumps(dataclasses.asdict(order)).encode() + b"\n")
        except BrokenPipeError:
            raise self._ended() from None

    def next_report(self, timeout: float) -> Report:
        """Wait for what it reports next.

        Args:
            timeout: Longest wait, in seconds.

        Raises:
            DemonstrationError: It has ended, or the time is up.
        """
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            self._buffer += self._receive(deadline)
        line, _, self._buffer = self._buffer.partition(b"\n")
        facts = json.loads(line)
        return Report(self.name, facts.pop("event"), facts.pop("at"), facts)

    def await_stop(self, timeout: float) -> None:
        """Wait until it has been stopped by a signal.

        Args:
            timeout: Longest wait, in seconds.

        Raises:
            DemonstrationError: It has ended instead, or the time is up.
        """
        # In a thread, because waitpid knows no time-out.
        statuses: queue.SimpleQueue[int] = queue.SimpleQueue()

        def wait() -> None:
            with contextlib.suppress(ChildProcessError):  # ended, and close() was faster
                statuses.put(os.waitpid(self.pid, os.WUNTRACED)[1])

        threading.Thread(target=wait, daemon=True).start()
        try:
            status = statuses.get(timeout=timeout)
        except queue.Empty:
            raise self._too_late("was not stopped") from None
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            raise self._ended()

    def resume(self) -> None:
        """Let it run on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it, whatever its state, and reap it; once more does nothing."""
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _receive(self, deadline: float) -> bytes:
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise self._too_late("did not get on")
        chunk = os.read(self._process.stdout.fileno(), 65536)
        if not chunk:
            raise self._ended()
        return chunk

    def _too_late(self, what: str) -> DemonstrationError:
        return DemonstrationError(f"process {self.name} {what} in time{self._last_words()}")

    def _ended(self) -> DemonstrationError:
        return DemonstrationError(f"process {self.name} has ended unexpectedly{self._last_words()}")

    def _last_words(self) -> str:
        words = os.pread(self._stderr.fileno(), 1 << 16, 0).decode(errors="replace").strip()
        return f"; it said: {words}" if words else ""

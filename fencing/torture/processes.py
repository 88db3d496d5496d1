"""A worker, as whoever runs it sees it: a process that stops itself, goes on, and ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencing.torture.settings import Plan

__all__ = ["MODULE", "WorkerProcess"]

MODULE = "fencing.torture.worker"


class WorkerProcess:
    """A process that works as planned; killed when the block is left.

    Its process group is its own, so that Ctrl-C is its parent's to handle. Its session is not: if
    the parent is killed it ends by the SIGHUP that the kernel sends to a stopped group that nobody
    is left to continue, or by its input's end.

    Args:
        plan: What it is told.
        module: The program; another one than ours may change something before it runs ours.
        environment: What is added to its environment.

    Attributes:
        stopped: Whether it has stopped, as far as was looked.
        held: Whether somebody has stopped it who will resume it.
    """

    def __init__(
        self, plan: Plan, *, module: str = MODULE, environment: Mapping[str, str] | None = None
    ) -> None:
        self.plan = plan
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = subprocess.Popen(  # noqa: S603 - a module of ours
            # -P and our own path: it imports what we import, and nothing from where it was started.
            [sys.executable, "-P", "-m", module, plan.to_json()],
            stdin=subprocess.PIPE,
            stdout=self._stderr,
            stderr=self._stderr,
            process_group=0,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
                **(environment or {}),
            },
        )
        self.stopped = False
        self.held = False

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.plan.worker

    @property
    def begun(self) -> bool:
        """Whether it has begun to work, rather than just to start."""
        return Path(self.plan.record).exists()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status, as :attr:`subprocess.Popen.returncode` has it; None while it lives."""
        return self._process.returncode

    def look(self) -> None:
        """Bring :attr:`stopped` and :attr:`status` up to date; does not wait."""
        while self._process.returncode is None:
            flags = os.WUNTRACED | os.WCONTINUED | os.WNOHANG
            pid, status = os.waitpid(self.pid, flags)
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                self.stopped = True
            elif os.WIFCONTINUED(status):
                self.stopped = False
            else:
                self._process.returncode = os.waitstatus_to_exitcode(status)

    def await_stop(self, timeout: float) -> None:
        """Wait until it has stopped itself.

        Args:
            timeout: Longest wait, in seconds.

        Raises:
            TimeoutError: The time is up.
            RuntimeError: It has ended instead.
        """
        self._await(timeout, "was not stopped", ended=False)

    def await_end(self, timeout: float) -> int:
        """Wait until it has ended; its exit status.

        Args:
            timeout: Longest wait, in seconds.

        Raises:
            TimeoutError: The time is up.
        """
        self._await(timeout, "did not end", ended=True)
        assert self.status is not None  # noqa: S101 - that was waited for
        return self.status

    def _await(self, timeout: float, what: str, *, ended: bool) -> None:
        deadline = time.monotonic() + timeout
        while True:
            self.look()
            if self.status is not None:
                if ended:
                    return
                message = f"worker {self.name} has ended{self.last_words()}"
                raise RuntimeError(message)
            if self.stopped and not ended:
                return
            if time.monotonic() > deadline:
                message = f"worker {self.name} {what} in {timeout:g} s{self.last_words()}"
                raise TimeoutError(message)
            time.sleep(0.002)  # waitpid knows no time-out

    def stop(self) -> None:
        """Stop it wherever it is (SIGSTOP), until it is resumed."""
        self.held = True
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on (SIGCONT)."""
        self._send(signal.SIGCONT)
        self.stopped = self.held = False

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        self._send(signal.SIGKILL)

    def dismiss(self) -> None:
        """Have it end when it has done what it has begun."""
        self._send(signal.SIGTERM)

    def _send(self, number: signal.Signals) -> None:
        self.look()
        if self.status is None:  # not reaped yet, so the id is still its own
            os.kill(self.pid, number)

    def last_words(self) -> str:
        """What it has said on its standard error, ready to be put behind a message."""
        size = os.fstat(self._stderr.fileno()).st_size
        words = os.pread(self._stderr.fileno(), 4096, max(0, size - 4096))
        text = words.decode(errors="replace").strip()
        return f"; it said: {text}" if text else ""

    def close(self) -> None:
        """Kill it, whatever its state, and reap it; once more does nothing."""
        self.look()
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdin, self._stderr):
            if stream is not None and not stream.closed:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def close_all(processes: Sequence[WorkerProcess]) -> None:
    """Kill and reap several, all of them even if one cannot be."""
    for process in processes:
        process.close()

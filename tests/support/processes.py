"""Real processes for tests: start one, wait for what it reports, stop, continue or kill it.

::

    def withdraw(parent: Parent, url: str) -> None:      # at the top of a test module
        ...
        parent.report("read", balance=100)
        parent.wait_for("go on")
        ...

    with ChildProcess(withdraw, database) as child:
        assert child.wait_for("read")["balance"] == 100
        child.suspend()
        ...
        child.resume()
        child.tell("go on")
        assert child.wait() == 0
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["ChildProcess", "Watch"]

ROOT = Path(__file__).parents[2]


class ChildProcess:
    """A Python process that runs one function; killed when the block is left.

    Args:
        function: A function, or a coroutine function, at the top level of a module; its first
            argument is a `Parent`. Or its name, ``"package.module:function"``.
        arguments: Its other arguments; values that JSON can carry.
        environment: Environment variables on top of ours.
        prefix: A command that runs the process, such as ``["nice", "-n", "5"]``; reports come
            through it.
        pass_fds: File descriptors to inherit.
    """

    def __init__(
        self,
        function: Callable[..., Any] | str,
        *arguments: Any,
        environment: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = (
            function
            if isinstance(function, str)
            else f"{function.__module__}:{function.__qualname__}"
        )
        self.events: list[dict[str, Any]] = []
        self._buffer = b""
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        program = [sys.executable, "-m", "tests.support.child", self.name, json.dumps(arguments)]
        self._process = subprocess.Popen(
            [*prefix, *program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            bufsize=0,
            pass_fds=pass_fds,
            start_new_session=True,  # a test may signal its group; a Ctrl-C is pytest's to handle
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def wait_for(self, event: str, timeout: float = 20.0) -> dict[str, Any]:
        """Wait until it reports this event; earlier ones are passed over, and kept in `events`.

        Args:
            event: The event's name.
            timeout: How long to wait, in seconds.

        Returns:
            The report: ``event``, and the facts.

        Raises:
            AssertionError: If it ends first, or the time is up; with what it wrote to stderr.
        """
        deadline = time.monotonic() + timeout
        while True:
            while b"\n" not in self._buffer:
                self._receive(event, deadline)
            line, _, self._buffer = self._buffer.partition(b"\n")
            report: dict[str, Any] = json.loads(line)
            self.events.append(report)
            if report["event"] == event:
                return report

    def _receive(self, event: str, deadline: float) -> None:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, deadline - time.monotonic())):
                raise AssertionError(f"{self.name} did not report {event!r} in time{self._story()}")
        chunk = os.read(self._process.stdout.fileno(), 65536)
        if not chunk:
            raise AssertionError(f"{self.name} ended before {event!r}{self._story()}")
        self._buffer += chunk

    def tell(self, word: str) -> None:
        """Say a word that it waits for with `Parent.wait_for`."""
        assert self._process.stdin is not None
        self._process.stdin.write(word.encode() + b"\n")

    def suspend(self) -> None:
        """Stop it from running (SIGSTOP); it has stopped when this returns."""
        self._process.send_signal(signal.SIGSTOP)
        if self._process.returncode is not None:
            raise AssertionError(f"{self.name} had ended before it could be stopped{self._story()}")
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self._process.returncode = os.waitstatus_to_exitcode(status)
            raise AssertionError(f"{self.name} had ended before it could be stopped{self._story()}")

    def resume(self) -> None:
        """Let it run on (SIGCONT)."""
        self._process.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def wait(self, timeout: float = 20.0) -> int:
        """Wait until it ends.

        Args:
            timeout: How long to wait, in seconds.

        Returns:
            Its exit status; negative for the signal it died of.

        Raises:
            subprocess.TimeoutExpired: If it does not end in time.
        """
        return self._process.wait(timeout)

    def check(self, timeout: float = 20.0) -> None:
        """Wait until it ends, and insist on success.

        Args:
            timeout: How long to wait, in seconds.

        Raises:
            AssertionError: If its exit status is not 0; with what it wrote to stderr.
        """
        status = self.wait(timeout)
        if status != 0:
            raise AssertionError(f"{self.name} ended with status {status}{self._story()}")

    def stderr(self) -> str:
        """What it has written to stderr, and printed, so far."""
        return os.pread(self._stderr.fileno(), 1 << 20, 0).decode(errors="replace")

    def _story(self) -> str:
        seen = ", ".join(report["event"] for report in self.events) or "nothing"
        return f"; it had reported: {seen}\n{self.stderr()}"

    def close(self) -> None:
        """Kill it if it still runs."""
        if self._process.returncode is None:
            self.kill()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
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


class Watch:
    """Processes that are not our children, watched for their end.

    Args:
        pids: Their process ids; all must run now. Their descendants are watched with them.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        parents = [psutil.Process(pid) for pid in pids]
        self._alive = {
            process.pid: process
            for parent in parents
            for process in (parent, *parent.children(recursive=True))
        }
        self._ends: list[int] = []
        if hasattr(os, "pidfd_open"):
            # Tells the end also of a process that nobody reaps.
            for pid in self._alive:
                with contextlib.suppress(ProcessLookupError):  # it has ended already
                    self._ends.append(os.pidfd_open(pid))

    def wait(self, timeout: float = 20.0) -> None:
        """Wait until all have ended.

        Args:
            timeout: How long to wait, in seconds.

        Raises:
            AssertionError: If one still runs then.
        """
        deadline = time.monotonic() + timeout
        if self._ends:
            for end in self._ends:
                with selectors.DefaultSelector() as selector:
                    selector.register(end, selectors.EVENT_READ)
                    ended = selector.select(max(0.0, deadline - time.monotonic()))
                    assert ended, [p for p in self._alive.values() if p.is_running()]
        else:
            _, alive = psutil.wait_procs(self._alive.values(), timeout)
            assert not alive, alive

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for end in self._ends:
            os.close(end)

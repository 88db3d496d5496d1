"""A server process of ours, seen from the parent: started, awaited, signalled, restarted, ended.

Knows nothing of PostgreSQL or Valkey. The supervisor (``supervisor.py``) is what makes sure that
the server ends with us.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencing.embedded.places import EmbeddedServerError, base_directory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["ServerProcess", "Signals"]

SUPERVISOR = str(Path(__file__).with_name("supervisor.py"))
# A probe of a server that is starting costs a file read or a connection to this machine.
PROBE_INTERVAL = 0.01  # seconds


@dataclass
class Signals:
    """Which signals stop a server.

    Attributes:
        orderly: Asks it to stop and to keep its data.
        disposal: Stops it when its data is to be thrown away.
        orphaned: What the kernel sends it if its supervisor was killed (Linux).
    """

    orderly: signal.Signals
    disposal: signal.Signals
    orphaned: signal.Signals


class ServerProcess:
    """A supervised process and its temporary directory.

    Both are gone after `close`, or when this process ends, however it ends. Not for use by several
    threads at once. A forked child owns nothing: its `close` does nothing.

    Args:
        name: What to call it in messages and in the directory's name.
        signals: Which signals stop it.
        identity: The uid and gid to run as, instead of ours.
        in_memory: Whether the directory should be in memory, where there is room.

    Attributes:
        environment: What each `run` adds to our environment.

    Raises:
        EmbeddedServerError: If the supervisor does not start.
    """

    def __init__(
        self,
        name: str,
        signals: Signals,
        identity: tuple[int, int] | None = None,
        *,
        in_memory: bool = False,
    ) -> None:
        self.name = name
        self.pid: int | None = None
        self.environment: dict[str, str] = {}
        self._signals = signals
        self._identity = identity
        self._owner = os.getpid()
        self._buffer = b""
        settings = {
            "prefix": f"fencing-{name}-",
            "base": base_directory(identity, in_memory=in_memory),
            "identity": identity,
            "parent": self._owner,
        }
        self._supervisor = subprocess.Popen(
            # -I and -S: neither our environment nor site-packages concern it.
            [sys.executable, "-I", "-S", SUPERVISOR, json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            # A Ctrl-C reaches our process group; the supervisor acts on our end, not on keys.
            start_new_session=True,
        )
        assert self._supervisor.stdin is not None  # noqa: S101 - we asked for pipes
        assert self._supervisor.stdout is not None  # noqa: S101 - as above
        self._input, self._output = self._supervisor.stdin, self._supervisor.stdout
        try:
            self.directory = Path(self._report(timeout=10.0)["directory"])
        except BaseException:
            self._input.close()  # which ends the supervisor
            self._output.close()
            self._supervisor.wait()
            raise
        self.log = self.directory / "log"

    @property
    def supervisor_pid(self) -> int:
        """The process id of the supervisor."""
        return self._supervisor.pid

    def run(self, argv: Sequence[str | Path]) -> int:
        """Start a process.

        Args:
            argv: The program and its arguments.

        Returns:
            Its process id.

        Raises:
            EmbeddedServerError: If it cannot be started, or one runs already.
        """
        if self.pid is not None:
            message = f"{self.name} runs already, as process {self.pid}"
            raise EmbeddedServerError(message)
        self._command(
            run=[str(argument) for argument in argv],
            log=str(self.log),
            identity=self._identity,
            environment=self.environment,
            stop_signal=self._signals.disposal,
            death_signal=self._signals.orphaned,
        )
        self.pid = int(self._report(timeout=10.0)["started"])
        return self.pid

    def until(self, ready: Callable[[], bool], timeout: float) -> None:
        """Wait until the server says that it is ready.

        Args:
            ready: Looks; called every 10 ms.
            timeout: How long to wait, in seconds.

        Raises:
            EmbeddedServerError: If the server ends or the time is up; with its last log lines.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            status = self.wait(PROBE_INTERVAL)
            if status is not None:
                message = f"{self.name} ended with status {status} while starting:\n{self.tail()}"
                raise EmbeddedServerError(message)
            if time.monotonic() > deadline:
                message = f"{self.name} was not ready after {timeout} s:\n{self.tail()}"
                raise EmbeddedServerError(message)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the server's first process; to none if it has ended.

        Not SIGSTOP, which is answered: that is `suspend`.
        """
        self._command(signal=number)

    def suspend(self) -> None:
        """Stop the server's first process (SIGSTOP), and wait until it has stopped or ended.

        Raises:
            EmbeddedServerError: If it is not known within 10 s.
        """
        if self.pid is None:
            return
        self._command(signal=signal.SIGSTOP)
        facts = self._report(timeout=10.0)
        if "stopped" not in facts:  # but that it had ended, which `wait` is to read
            self._buffer = json.dumps(facts).encode() + b"\n" + self._buffer

    def wait(self, timeout: float) -> int | None:
        """Wait until the last process of the server has ended.

        Args:
            timeout: How long to wait, in seconds.

        Returns:
            The first process's exit status, negative for the signal it died of; None if it runs.
        """
        if self.pid is None:
            return 0
        facts = self._read(timeout)
        if facts is None:
            return None
        self.pid = None
        return int(facts["exited"])

    def end(self, number: signal.Signals | None = None, timeout: float = 10.0) -> int:
        """End the server; its directory stays, so that it can be started again.

        Args:
            number: The signal to send; by default the one that asks for an orderly stop.
            timeout: How long it may take, in seconds.

        Returns:
            The exit status, negative for the signal it died of.

        Raises:
            EmbeddedServerError: If it is still there when the time is up.
        """
        if self.pid is None:
            return 0
        self.send_signal(self._signals.orderly if number is None else number)
        status = self.wait(timeout)
        if status is None:
            message = f"{self.name} (process {self.pid}) did not end within {timeout} s"
            raise EmbeddedServerError(message)
        return status

    def close(self) -> None:
        """End the server and the supervisor, and remove the directory; at most 30 s."""
        if self._owner != os.getpid() or self._input.closed:
            return
        with contextlib.suppress(OSError):
            self._input.close()
        # The end of the reports means that supervisor and server are both gone.
        with contextlib.suppress(EmbeddedServerError):
            deadline = time.monotonic() + 20.0
            while self._read(max(0.0, deadline - time.monotonic())):
                pass
        self._output.close()
        try:
            self._supervisor.wait(10.0)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()
        self.pid = None
        # Only if the supervisor was killed is there anything left.
        shutil.rmtree(self.directory, ignore_errors=True)

    def tail(self, lines: int = 20) -> str:
        """The last lines of the server's log."""
        with contextlib.suppress(OSError):
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"

    def fileno(self) -> int:
        """Becomes readable when the server ends; for `selectors`."""
        return self._output.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _command(self, **command: object) -> None:
        try:
            self._input.write(json.dumps(command).encode() + b"\n")
        except (OSError, ValueError) as error:
            raise EmbeddedServerError(self._without_supervisor()) from error

    def _report(self, timeout: float) -> dict[str, Any]:
        facts = self._read(timeout)
        if facts is None:
            message = f"the supervisor of {self.name} did not answer within {timeout} s"
            raise EmbeddedServerError(message)
        return facts

    def _read(self, timeout: float) -> dict[str, Any] | None:
        """Read one report; None if there is none within the timeout."""
        deadline = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(self._output.fileno(), 65536)
                if not chunk:
                    raise EmbeddedServerError(self._without_supervisor())
                self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        facts: dict[str, Any] = json.loads(line)
        if "failed" in facts:
            message = f"{self.name} could not be started: {facts['failed']}"
            raise EmbeddedServerError(message)
        return facts

    def _without_supervisor(self) -> str:
        return f"{self.name} is gone: its supervisor has ended"

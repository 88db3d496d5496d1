"""Holds one server for a parent process, and never lets it outlive that parent.

Run as a script, not imported: it needs nothing but the standard library, so that it starts in the
time Python takes to start.

The parent writes commands to its standard input and reads reports from its standard output, one
JSON object a line. ::

    parent                                   supervisor
    {"run": [argv], "log": path, ...}   ->
                                        <-   {"started": pid}
    {"signal": number}                  ->                       only to a process that still runs
                                        <-   {"stopped": bool}   after SIGSTOP: it has; or has ended
                                        <-   {"exited": status}  negative: died of that signal
    end of file                         ->   stops the server, removes the directory, exits

*What each failure does.* The parent ends in whatever way: standard input ends, or our parent is
another process (a forked child of the parent may hold the pipe open). Ctrl-C: we are in a session
of our own and do not see it. We are killed ourselves: on Linux the kernel signals the server for
us (``PR_SET_PDEATHSIG``), elsewhere the server stays, for nothing can be done after SIGKILL.

*When is a server gone?* When the last of its processes is. Each inherits the writing end of a pipe
that nobody writes to: it ends when all of them have ended. They inherit our standard output, too,
so the parent knows as much even when we were killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

# How often we look whether our parent is still our parent, in seconds; its usual end is seen at
# once, as the end of standard input.
PARENT_CHECK_INTERVAL = 0.5
# How long a server may take to stop before it is killed, in seconds. PostgreSQL itself waits 5 s
# for its children in an immediate shutdown and then kills them.
STOP_GRACE = 8.0
PR_SET_PDEATHSIG = 1
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Our standard output under another number, for servers to inherit: their own 1 is their log.
REPORTS = os.dup(1)


def report(**facts: object) -> None:
    """Tell the parent; a parent that is gone need not be told."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(facts).encode() + b"\n")


class Server:
    """One running server: its first process, and a pipe that ends with its last.

    Args:
        command: What the parent sent: ``run`` (argv), ``log`` (file its output is appended to),
            ``identity`` (uid and gid to run as, or None), ``death_signal`` (what the kernel sends
            it if we die), ``stop_signal`` (what we send it at the end), ``environment`` (what to
            add to ours).
        directory: Its working directory.
    """

    def __init__(self, command: dict[str, Any], directory: Path) -> None:
        self.stop_signal: int = command["stop_signal"]
        supervisor = os.getpid()
        death_signal: int = command["death_signal"]

        def die_with_supervisor() -> None:
            # After the change of user, which clears it.
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal)
                if os.getppid() != supervisor:
                    os._exit(1)

        identity = command["identity"]
        uid, gid = identity or (None, None)
        self.alive, inherited = os.pipe()
        try:
            with Path(command["log"]).open("ab") as log:
                self.process = subprocess.Popen(
                    command["run"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=directory,
                    env={**os.environ, **command["environment"]},
                    user=uid,
                    group=gid,
                    extra_groups=[] if identity else None,
                    # Its own session: a Ctrl-C or a hangup is for the parent to act on.
                    start_new_session=True,
                    pass_fds=(inherited, REPORTS),
                    preexec_fn=die_with_supervisor,  # noqa: PLW1509 - we have no second thread
                )
        except BaseException:
            os.close(self.alive)
            raise
        finally:
            os.close(inherited)

    def stop(self) -> None:
        """Stop it for good, with force if it takes too long."""
        self.process.send_signal(self.stop_signal)
        self.process.send_signal(signal.SIGCONT)  # a stopped process acts on nothing else
        try:
            self.process.wait(STOP_GRACE)
        except subprocess.TimeoutExpired:
            self.process.kill()
        with selectors.DefaultSelector() as selector:
            selector.register(self.alive, selectors.EVENT_READ)
            selector.select(STOP_GRACE)
        self.collect()

    def has_stopped(self) -> bool:
        """Wait until the first process has stopped (SIGSTOP); False if it has ended."""
        if self.process.returncode is not None:
            return False
        if not hasattr(os, "waitid"):  # macOS; there it stops a moment later
            return True
        # Left to be waited for, so that its end is still there to be collected.
        what = os.WSTOPPED | os.WEXITED | os.WNOWAIT
        came = os.waitid(os.P_PID, self.process.pid, what)
        return came is not None and came.si_code == os.CLD_STOPPED

    def collect(self) -> int:
        """Wait for the first process, whose pipe has ended.

        Returns:
            Its exit status; the negative number of a signal it died of.
        """
        os.close(self.alive)
        return self.process.wait()


class Supervisor:
    """Obeys its parent, one server at a time.

    Args:
        directory: Where the server keeps its data; removed at the end.
        parent: The parent's process id.
    """

    def __init__(self, directory: Path, parent: int) -> None:
        self.directory = directory
        self.parent = parent
        self.server: Server | None = None
        self.selector = selectors.DefaultSelector()
        self.buffer = b""
        self.selector.register(0, selectors.EVENT_READ)

    def serve(self) -> None:
        """Do what the parent says until it ends or asks for the end."""
        while os.getppid() == self.parent:
            for key, _ in self.selector.select(PARENT_CHECK_INTERVAL):
                if key.fd != 0:
                    self.note_exit()
                elif not self.read_commands():
                    return

    def read_commands(self) -> bool:
        """Read and obey.

        Returns:
            False when there will be no more commands.
        """
        chunk = os.read(0, 65536)
        *lines, self.buffer = (self.buffer + chunk).split(b"\n")
        for line in lines:
            self.obey(json.loads(line))
        return bool(chunk)

    def obey(self, command: dict[str, Any]) -> None:
        """Obey one command."""
        if "run" in command:
            try:
                self.server = Server(command, self.directory)
            except (OSError, subprocess.SubprocessError) as error:
                report(failed=f"{command['run'][0]}: {error}")
                return
            self.selector.register(self.server.alive, selectors.EVENT_READ)
            report(started=self.server.process.pid)
        elif self.server is not None:
            self.server.process.send_signal(command["signal"])
            if command["signal"] == signal.SIGSTOP:
                report(stopped=self.server.has_stopped())

    def note_exit(self) -> None:
        """Report that the last process of the server has ended."""
        assert self.server is not None  # noqa: S101 - its pipe was registered
        self.selector.unregister(self.server.alive)
        report(exited=self.server.collect())
        self.server = None

    def close(self) -> None:
        """Stop the server and remove its directory; nothing interrupts this."""
        for number in ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        if self.server is not None:
            self.server.stop()
        # A straggler may write a file while we remove its folder, and nothing tells when it has
        # ended: it is no child of ours.
        for _ in range(10):
            shutil.rmtree(self.directory, ignore_errors=True)
            if not self.directory.exists():
                return
            time.sleep(0.05)


def main() -> None:
    """Make the directory, serve, clean up."""
    for number in ENDING_SIGNALS:
        # Ends `serve` as an exception, after which everything is cleaned up.
        signal.signal(number, lambda *_: sys.exit(1))
    settings = json.loads(sys.argv[1])
    directory = Path(tempfile.mkdtemp(prefix=settings["prefix"], dir=settings["base"]))
    supervisor = Supervisor(directory, settings["parent"])
    try:
        if settings["identity"]:
            os.chown(directory, *settings["identity"])
        report(directory=str(directory))
        supervisor.serve()
    except Exception:
        report(failed=traceback.format_exc())
        raise
    finally:
        supervisor.close()


if __name__ == "__main__":
    main()

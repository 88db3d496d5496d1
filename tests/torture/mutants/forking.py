"""Workers that are forked from a process which has imported everything.

A schedule starts two or three, and importing takes each of them longer than all they do.

::

    this process ── Nursery ──> a process without threads or connections
                                   │ fork, fork: the child between them ends at once, so that the
                                   │ kernel gives the worker to us, its nearest reaper
         WorkerProcess <───────────┘
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from fencing.torture.processes import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.torture.settings import Plan

__all__ = ["ForkedWorker", "Nursery"]

_PR_SET_CHILD_SUBREAPER = 36


class Nursery:
    """The process that is forked; a context manager that ends it. Needs Linux."""

    def __enter__(self) -> Self:
        _adopt_orphans(whether=True)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.torture.mutants.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path),
            },
        )
        return self

    def __exit__(self, *error: object) -> None:
        self._process.__exit__(*error)
        _adopt_orphans(whether=False)

    def fork(self, plan: Plan, twists: Sequence[str], output: str) -> int:
        """A worker's process id.

        Args:
            plan: What it is told.
            twists: What is changed of it first, by name.
            output: The file for what it says.
        """
        request = {"plan": plan.to_json(), "twists": list(twists), "output": output}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class ForkedWorker(WorkerProcess):
    """A worker of a nursery; otherwise as its base."""

    def __init__(self, nursery: Nursery, plan: Plan, twists: Sequence[str]) -> None:
        self.plan = plan
        self.stopped = self.held = False
        self._stderr = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed by close()
        self._process = _Adopted(nursery.fork(plan, twists, self._stderr.name))


class _Adopted:
    """What a worker needs of a :class:`subprocess.Popen`."""

    stdin = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)


def _adopt_orphans(*, whether: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(whether), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def _serve() -> None:
    from fencing.torture import worker  # noqa: F401 - so that it is there when it is forked
    from tests.torture.mutants import twists  # noqa: F401 - as above

    for line in sys.stdin:
        request = json.loads(line)
        told, tell = os.pipe()
        between = os.fork()
        if between == 0:
            if (born := os.fork()) == 0:
                _live(request)
            os.write(tell, str(born).encode())
            os._exit(0)
        os.close(tell)
        born = int(os.read(told, 20))
        os.close(told)
        os.waitpid(between, 0)  # only then is the worker an orphan
        sys.stdout.write(f"{born}\n")
        sys.stdout.flush()


def _live(request: dict[str, Any]) -> None:
    status = 1
    try:
        os.setpgid(0, 0)
        output = os.open(request["output"], os.O_WRONLY | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((nothing, 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        from tests.torture.mutants import twists

        twists.run(request["plan"], request["twists"])
        status = 0
    except BaseException:  # noqa: BLE001 - it is what a program says at its end
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()

"""False clocks: the time of day of chosen processes jumps while they run.

::

    with ValkeyProcess(false_clock=True) as valkey:
        valkey.clock.set(3600.0)      # an hour ahead of everybody else, from now on
        valkey.clock.set(0.0)         # and back

Why not libfaketime: its 0.9.10 makes `time.sleep` of Python 3.11 fail (EINVAL) when it is told to
leave ``CLOCK_MONOTONIC`` alone, lets waits hang when it is not, and leaves two files in
``/dev/shm`` behind for each process. What is needed is 60 lines, compiled when they are asked for.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

from fencing.embedded.places import EmbeddedServerError, find_program

__all__ = ["FalseClock"]

SOURCE = Path(__file__).with_name("false_clock.c")
NANOSECONDS = 10**9


class FalseClock:
    """A clock that goes wrong when it is told to, for processes started with its `environment`.

    Only the time of day is false (``CLOCK_REALTIME``, ``gettimeofday``, ``time``); clocks that only
    count, and waits, are true.

    Args:
        directory: Where its two files go; whoever owns the directory removes them.

    Attributes:
        environment: What to add to the environment of a process, and of its children.

    Raises:
        MissingProgramError: If there is no C compiler.
        EmbeddedServerError: If it does not compile, or this is not Linux.
    """

    def __init__(self, directory: str | Path) -> None:
        if sys.platform != "linux":
            message = "false clocks are for Linux: they are preloaded into a process"
            raise EmbeddedServerError(message)
        folder = Path(directory)
        self._file = folder / "false-clock"
        library = folder / "false-clock.so"
        compiler = find_program("cc", "gcc libc6-dev")
        # fmt: off
        done = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"],
            capture_output=True, text=True, check=False,
        )
        # fmt: on
        if done.returncode:
            message = f"{SOURCE.name} does not compile:\n{done.stderr}"
            raise EmbeddedServerError(message)
        self._seconds = 0.0
        self._file.write_bytes(bytes(8))
        # A server may run as another user.
        self._file.chmod(0o644)
        library.chmod(0o755)
        self.environment = {"LD_PRELOAD": str(library), "FENCING_FALSE_CLOCK": str(self._file)}

    @property
    def seconds(self) -> float:
        """How far it is ahead of the true clock."""
        return self._seconds

    def set(self, seconds: float) -> None:
        """Jump, in all the processes at once.

        Args:
            seconds: How far ahead of the true clock it is from now on; negative if behind.
        """
        with self._file.open("r+b", buffering=0) as file:
            # In place and in one write: the file is mapped by the processes.
            file.write(struct.pack("=q", round(seconds * NANOSECONDS)))
        self._seconds = seconds

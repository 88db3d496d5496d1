"""What a process writes down before it goes on: one line of JSON each, safe from its own death."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from fencing.clock import now

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Record", "read_records"]


class Record:
    """A file that one process appends to.

    Every line has ``event`` and ``at``, the moment in seconds of :func:`fencing.clock.now`, which
    all processes of a machine share. It is with the kernel when the call returns, so that SIGKILL
    loses nothing.

    Args:
        path: The file.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def __call__(self, event: str, **facts: object) -> float:
        """Write down that something has happened; the moment it is said to have."""
        at = facts.pop("at", None)
        moment = now() if at is None else at
        os.write(self._file, json.dumps({"event": event, "at": moment, **facts}).encode() + b"\n")
        assert isinstance(moment, float)  # noqa: S101 - narrows what was in facts
        return moment

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def read_records(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file; of a process that was killed while it wrote, not its last."""
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]

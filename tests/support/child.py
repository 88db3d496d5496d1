"""The other side of `tests.support.processes`: runs one function in a process of its own.

::

    python -m tests.support.child module:function '[arguments as JSON]'

The function gets a `Parent` first. Standard output is for reports; what it prints goes to standard
error.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import sys
from typing import Any


class Parent:
    """How the function talks to the test.

    Args:
        output: The file descriptor to report to.
    """

    def __init__(self, output: int) -> None:
        self._output = output

    def report(self, event: str, **facts: Any) -> None:
        """Say that something has happened; seen by `ChildProcess.wait_for`.

        Args:
            event: Its name.
            facts: What to know about it; values that JSON can carry.
        """
        os.write(self._output, json.dumps({"event": event, **facts}).encode() + b"\n")

    def hear(self) -> str:
        """Wait until the test says a word with `ChildProcess.tell`; return it."""
        return sys.stdin.readline().strip()

    def wait_for(self, word: str) -> None:
        """Wait until the test says this word with `ChildProcess.tell`.

        Raises:
            EOFError: If it says something else, or nothing any more.
        """
        said = self.hear()
        if said != word:
            raise EOFError(f"waited for {word!r}, got {said!r}")


def main() -> None:
    """Import the function and call it."""
    target, arguments = sys.argv[1], json.loads(sys.argv[2])
    reports = os.dup(1)
    os.dup2(2, 1)
    module, _, name = target.partition(":")
    function: Any = importlib.import_module(module)
    for part in name.split("."):
        function = getattr(function, part)
    result = function(Parent(reports), *arguments)
    if inspect.iscoroutine(result):
        asyncio.run(result)


if __name__ == "__main__":
    main()

"""An interrupt before any chosen line of some modules, as a signal may bring it."""

from __future__ import annotations

import linecache
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fencing.lease import leases

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType, ModuleType, TracebackType

__all__ = ["came_before_anything_could_be_done", "interrupted_before_line"]


@contextmanager
def interrupted_before_line(number: int, *modules: ModuleType) -> Iterator[list[str]]:
    """Raise ``KeyboardInterrupt`` before the n-th line run of some modules; yields those run."""
    files = {module.__file__ for module in modules}
    lines: list[str] = []

    def trace(frame: FrameType, happened: str, _: object) -> object:
        if frame.f_code.co_filename not in files:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # Python runs the line of a block again at its end, where no signal would be handled; nor is
        # one at a try, where there is nothing to do.
        if happened == "line" and not line.startswith(("with ", "async with ", "try:")):
            lines.append(line)
            if len(lines) == number:
                sys.settrace(before)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        yield lines
    finally:
        sys.settrace(before)


def came_before_anything_could_be_done(traceback: TracebackType | None) -> bool:
    """Whether an exception came between the end of acquire and the first line of the block.

    Or between its last line and the first of its end: there Python cannot catch it.
    """
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename == leases.__file__ and code.co_name in {"__enter__", "__exit__"}:
            lines = sorted({line for *_, line in code.co_lines() if line is not None})
            return traceback.tb_lineno in lines[:2]
        traceback = traceback.tb_next
    return False

"""An interrupt before any chosen line of some modules, as a signal may bring it."""

from __future__ import annotations

import linecache
import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from fencing.interrupts import is_begun_unseen

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType, ModuleType

__all__ = ["interrupted_before_line"]


@contextmanager
def interrupted_before_line(number: int, *modules: ModuleType) -> Iterator[list[str]]:
    """Raise ``KeyboardInterrupt`` before the n-th line run of some modules; yields those run."""
    files = {module.__file__ for module in modules}
    lines: list[str] = []

    def trace(frame: FrameType, happened: str, _: object) -> object:
        if frame.f_code.co_filename not in files:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if happened == "line" and _can_be_interrupted(frame, line):
            lines.append(line)
            if len(lines) == number:
                sys.settrace(before)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]  # it returns itself, for which there is no type
    try:
        yield lines
    finally:
        sys.settrace(before)


def _can_be_interrupted(frame: FrameType, line: str) -> bool:
    # Python runs the line of a block again at its end, where no signal would be handled; nor is one
    # at a try, where there is nothing to do.
    if line.startswith(("with ", "async with ", "try:")):
        return False
    return frame.f_lineno >= _first_line(frame.f_code)


@cache
def _first_line(code: CodeType) -> int:
    """The first one before which a signal may come; where a function begins in its try: in that."""
    if not is_begun_unseen(code):
        return 0
    lines = enumerate(linecache.getlines(code.co_filename), start=1)
    return next(n for n, line in lines if n > code.co_firstlineno and line.strip() == "try:")

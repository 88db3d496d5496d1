"""A signal before any chosen line of some modules: one that interrupts, or whose handler works."""

from __future__ import annotations

import dis
import gc
import linecache
import sys
import threading
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from fencing.interrupts import is_begun_unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from types import CodeType, FrameType, ModuleType

__all__ = [
    "ends",
    "handled_before_line",
    "handled_before_step",
    "interrupted_before_line",
    "interrupted_before_step",
    "looks_for_signals",
]


def interrupted_before_line(number: int, *modules: ModuleType) -> AbstractContextManager[list[str]]:
    """Raise ``KeyboardInterrupt`` before the n-th line run of some modules; yields those run."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    return handled_before_line(number, interrupt, *modules)


@contextmanager
def handled_before_line(
    which: int | str, handler: Callable[[], object], *modules: ModuleType
) -> Iterator[list[str]]:
    """Call a handler before the n-th line that some modules run, or a certain one; yields them."""
    files = {module.__file__ for module in modules}
    lines: list[str] = []

    def trace(frame: FrameType, happened: str, _: object) -> object:
        if frame.f_code.co_filename not in files:
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if happened == "line" and _can_be_interrupted(frame, line):
            lines.append(line)
            if which in (len(lines), line):
                sys.settrace(before)
                handler()
        return trace

    before = sys.gettrace()
    with _traced(trace):
        yield lines


@contextmanager
def handled_before_step(
    number: int,
    handler: Callable[[], object],
    *modules: ModuleType,
    where: Callable[[FrameType, int | None], bool] = lambda _, __: True,
) -> Iterator[list[str]]:
    """Call a handler before the n-th instruction of some modules; yields the lines of those run.

    Before more of them than there are where Python looks for signals, if it is not said ``where``,
    of a frame and the place of the instruction that it has run before.
    """
    files = {module.__file__ for module in modules}
    steps: list[str] = []
    places: dict[int, int] = {}  # not of the frames, which would be kept alive

    def trace(frame: FrameType, happened: str, _: object) -> object:
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        before_this = places.get(id(frame))
        if happened in ("call", "opcode"):
            places[id(frame)] = frame.f_lasti
        elif happened == "return":
            places.pop(id(frame), None)
        if happened == "opcode" and where(frame, before_this):
            steps.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            if len(steps) == number:
                sys.settrace(before)
                handler()
        return trace

    before = sys.gettrace()
    with _traced(trace):
        yield steps


def interrupted_before_step(number: int, *modules: ModuleType) -> AbstractContextManager[list[str]]:
    """Raise ``KeyboardInterrupt`` where Python looks for signals in some modules, the n-th time."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    return handled_before_step(number, interrupt, *modules, where=looks_for_signals)


def looks_for_signals(frame: FrameType, before: int | None) -> bool:
    """Whether CPython looks for signals behind an instruction: at a beginning, a call, a loop."""
    if before is None:
        return False
    operation, argument = frame.f_code.co_code[before : before + 2]
    name = dis.opname[operation]
    if name == "RESUME":
        return argument & 3 < 2  # called, or after a yield; see fencing.interrupts
    return name.startswith(("CALL", "JUMP_BACKWARD"))


@contextmanager
def _traced(trace: Callable[[FrameType, str, object], object]) -> Iterator[None]:
    before, collects = sys.gettrace(), gc.isenabled()
    gc.disable()  # or what earlier tests have left ends in here, where nobody sees what is raised
    sys.settrace(trace)  # type: ignore[arg-type]  # it returns itself, for which there is no type
    try:
        yield
    finally:
        sys.settrace(before)
        if collects:
            gc.enable()


def ends(work: Callable[[], object], seconds: float = 30) -> bool:
    """Do something in a thread of its own; return whether it ends, rather than wait for itself."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    for error in raised:
        raise error
    return not thread.is_alive()


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

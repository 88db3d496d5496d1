"""Functions that begin in their ``try``, whatever a signal handler raises.

CPython looks for signals when a function begins, before its first line. What a handler raises there
nobody catches: a ``with`` block whose ``__enter__`` or ``__exit__`` was just called is left without
its end, and a lock stays for the whole of its ttl. Between the other instructions that lead into a
block and out of it, CPython does not look.

So those few functions are told not to look. The instruction that begins a function, ``RESUME``,
has an argument that says what goes on: 0 for a call, 2 for a generator in the midst of a ``yield
from``, where there is no need to look since the generator inside does. With 2, the first look comes
with the first call inside the function, which is in its ``try``.
"""

from __future__ import annotations

import dis
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

__all__ = ["begins_in_its_try", "is_begun_unseen"]

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")

# Those on which this was seen to work. On others an interrupt may come before the first line.
_KNOWN = sys.implementation.name == "cpython" and (3, 11) <= sys.version_info < (3, 14)

_CALLED = 0
_IN_YIELD_FROM = 2


def begins_in_its_try(function: FunctionT) -> FunctionT:
    """Decorate a function so that no signal is looked for before its first line.

    Before its ``try`` it must call nothing, and may only give names to constants. Its behaviour is
    the same otherwise; on an interpreter that is not known, entirely.
    """
    code: CodeType | None = getattr(function, "__code__", None)  # a compiled one has none
    if _KNOWN and code is not None and (resume := _resume_of(code)).arg == _CALLED:
        instructions = bytearray(code.co_code)
        instructions[resume.offset + 1] = _IN_YIELD_FROM
        function.__code__ = code.replace(co_code=bytes(instructions))
    return function


def is_begun_unseen(code: CodeType) -> bool:
    """Whether no signal is looked for where this code begins."""
    return _resume_of(code).arg == _IN_YIELD_FROM


def _resume_of(code: CodeType) -> dis.Instruction:
    return next(each for each in dis.get_instructions(code) if each.opname == "RESUME")

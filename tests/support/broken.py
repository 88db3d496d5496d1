"""Histories that something is wrong with, and the checkers that must say so."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.torture.checking import CHECKERS, Violation, check

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fencing.torture.history import History

__all__ = ["catches", "changed", "find", "without"]

Record = TypeVar("Record")


def find(name: str, history: History) -> list[Violation]:
    """What one checker says."""
    (checker,) = (each for each in CHECKERS if each.name == name)
    violations = checker.find(history)
    for violation in violations:
        assert (violation.checker, violation.invariant) == (name, checker.invariant)
    return violations


def catches(checker: str, message: str) -> Callable[[Callable[[], History]], Callable[[], None]]:
    """Make a test of a history: this checker says this of it."""

    def make_test(make: Callable[[], History]) -> Callable[[], None]:
        @wraps(make)
        def test() -> None:
            history = make()
            assert check(history)  # none of the others fails on it, whatever they say
            said = [violation.message for violation in find(checker, history)]
            assert any(re.search(message, each) for each in said), said

        return test

    return make_test


def changed(records: Sequence[Record], place: int, **fields: Any) -> tuple[Record, ...]:
    """Records, with one of them changed."""
    changing: list[Any] = list(records)
    changing[place] = replace(changing[place], **fields)
    return tuple(changing)


def without(records: Sequence[Record], *places: int) -> tuple[Record, ...]:
    """Records, without some of them."""
    gone = {place % len(records) for place in places}
    return tuple(record for place, record in enumerate(records) if place not in gone)

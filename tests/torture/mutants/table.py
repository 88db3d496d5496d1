"""The table of mutants: what is wrong, who sees it, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencing.torture.checking import CHECKERS

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Caught", "rows_of"]

_INVARIANTS = {checker.name: checker.invariant for checker in CHECKERS}


@dataclass(frozen=True, slots=True)
class Caught:
    """A mutant that was caught.

    Attributes:
        mutant: What is wrong with it.
        checker: Who has seen it.
        how: In which schedule, or run.
    """

    mutant: str
    checker: str
    how: str


def rows_of(caught: Iterable[Caught]) -> list[str]:
    """The table in Markdown, line by line."""
    return [
        "| mutant | caught by | when |",
        "|---|---|---|",
        *(
            f"| {each.mutant} | {each.checker} ({_INVARIANTS[each.checker]}) | {each.how} |"
            for each in caught
        ),
    ]

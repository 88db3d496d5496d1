"""What is there at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.elements import Elements
from fencing.torture.checking.views import by_row, is_set
from fencing.torture.checking.violation import Violation

if TYPE_CHECKING:
    from fencing.torture.history import History

__all__ = ["final_state_agrees"]


def final_state_agrees(history: History) -> list[Violation]:
    """I3: what is there at the end is what the accepted writes have left, and nothing else."""
    writes_of = by_row(history)
    final = history.final
    violations = []

    def violated(row: str, message: str, *evidence: object) -> None:
        violations.append(
            Violation("final state agrees", "I3", row, message, tuple(map(repr, evidence)))
        )

    for row in sorted({*final.rows, *final.elements, *writes_of}):
        writes = writes_of.get(row, [])
        if row in final.elements or is_set(writes):
            elements = Elements()
            for write in writes:
                elements.apply(write)
            number = elements.largest
            expected = {each: count for each, count in elements.counts.items() if count}
            found = {each: count for each, count in final.elements.get(row, {}).items() if count}
            if found != expected:
                differing = sorted(set(found.items()) ^ set(expected.items()))
                violated(row, f"its elements differ from what was written: {differing[:20]}")
            there = final.rows.get(row, 0)
        else:
            number = (writes[-1].new or 0) if writes else 0
            there = final.rows.get(row, 0)
        if there != number:
            message = f"it is {there} at the end; {number} was written last"
            violated(row, message, *writes[-1:])
    return violations

"""Errors that no fault explains: somebody has made a mistake."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.violation import Violation

if TYPE_CHECKING:
    from fencing.torture.history import Acquisition, History, Transaction

__all__ = ["nothing_breaks"]

_MISTAKES = frozenset(
    {
        "AssertionError", "AttributeError", "IndexError", "KeyError", "NameError",
        "NotImplementedError", "RecursionError", "TypeError", "UnboundLocalError",
        "UnicodeDecodeError", "UnicodeEncodeError", "ValueError",
    }
)  # fmt: skip
"""What Python raises when a program is wrong, or was given what it cannot be given."""


def nothing_breaks(history: History) -> list[Violation]:
    """No worker met an error that tells of a mistake, whatever has happened to it.

    Servers that are gone, and locks and leases that are, have errors of their own.
    """
    attempts: list[Acquisition | Transaction] = [*history.acquisitions, *history.transactions]
    return [
        Violation(
            "nothing breaks", "converse", each.name,
            f"it ended with {each.error} ({each.message}), which is nobody's answer to a fault",
            (repr(each),),
        )
        for each in attempts
        if each.error in _MISTAKES
    ]  # fmt: skip

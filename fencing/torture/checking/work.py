"""The run has done something."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fencing.torture.checking.views import WRITING
from fencing.torture.checking.violation import Violation
from fencing.torture.history import Outcome

if TYPE_CHECKING:
    from fencing.torture.history import History

__all__ = ["work_was_done"]

_TRIES = 50
"""So many transactions of one sort cannot all have failed by bad luck."""


def work_was_done(history: History) -> list[Violation]:
    """A run in which nothing is accepted proves nothing: a guard that refuses all passes the rest.

    Something was accepted, and of each kind of transaction, each way to the database and each
    isolation level that was tried often, some were committed. A run that was interrupted may have
    had no time for anything.
    """
    if not history.writes:
        if history.interrupted:
            return []
        return [_violation("the run", "nothing was accepted")]
    tried: Counter[str] = Counter()
    committed: Counter[str] = Counter()
    for transaction in history.transactions:
        if transaction.kind not in WRITING:
            continue
        for sort in (transaction.kind, transaction.path, transaction.isolation):
            tried[sort] += 1
            committed[sort] += transaction.outcome is Outcome.COMMITTED
    return [
        _violation(sort, f"none of {number} transactions was committed")
        for sort, number in tried.items()
        if number >= _TRIES and not committed[sort]
    ]


def _violation(subject: str, message: str) -> Violation:
    return Violation("work was done", "converse", subject, message)

"""What transactions were told, and what is in the database of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from fencing.torture.checking.views import REFUSABLE, WRITING, by_transaction, present
from fencing.torture.checking.violation import Violation
from fencing.torture.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.torture.history import History, Transaction, Write

__all__ = ["acknowledged_writes_are_there", "outcomes_are_true", "what_failed_left_nothing"]

_NOTHING = frozenset(
    {Outcome.ROLLED_BACK, Outcome.REFUSED, Outcome.CONFLICT, Outcome.FAILED},
)


def rows_to_change(transaction: Transaction) -> frozenset[str]:
    """The rows that a transaction of a writing kind changes."""
    return frozenset(transaction.changes) or frozenset(read.row for read in transaction.reads)


def _missing(transaction: Transaction, writes: Sequence[Write]) -> str | None:
    """What is wrong with the writes of a transaction that is committed, if anything is.

    Of each row that it changes there is one write; elements may be deleted beside.
    """
    if transaction.kind not in WRITING:
        return f"it only looked, and wrote {writes[0].row}" if writes else None
    if not writes:
        return "nothing of it is there"
    written = Counter(write.row for write in writes if write.change != "delete")
    expected = rows_to_change(transaction)
    for row in sorted(expected):
        if written[row] != 1:
            return f"{row} was written {written[row]} times"
    if expected:
        for write in writes:
            if write.row not in expected:
                return f"it wrote {write.row}, which it was not to change"
    return None


def acknowledged_writes_are_there(history: History) -> list[Violation]:
    """I3: of a transaction that was told it is committed, each row's change is there, once.

    Not of a database that has itself lost what it acknowledged: no guard can mend that.
    """
    if history.loses_acknowledged:
        return []
    writes = by_transaction(history)
    violations = []
    for transaction in history.transactions:
        if transaction.outcome is not Outcome.COMMITTED or transaction.kind in REFUSABLE:
            continue
        found = writes.get(transaction.name, ())
        wrong = _missing(transaction, found)
        if wrong is not None:
            violations.append(
                Violation(
                    "acknowledged writes are there",
                    "I3",
                    transaction.name,
                    wrong,
                    (repr(transaction), *map(repr, found)),
                )
            )
    return violations


def what_failed_left_nothing(history: History) -> list[Violation]:
    """I13: of a transaction that was told it is not committed, nothing is there."""
    accepted = present(history)
    return [
        Violation(
            "what failed left nothing",
            "I13",
            transaction.name,
            f"it was told that it is {transaction.outcome}, and is there",
            (repr(transaction),),
        )
        for transaction in history.transactions
        if transaction.outcome in _NOTHING
        and transaction.kind not in REFUSABLE
        and transaction.name in accepted
    ]


def outcomes_are_true(history: History) -> list[Violation]:
    """I13: what an unknown outcome was found to be, it is; "unknown" is an honest answer."""
    writes = by_transaction(history)
    violations = []
    for transaction in history.transactions:
        if transaction.outcome is not Outcome.UNKNOWN or transaction.resolved is None:
            continue
        found = writes.get(transaction.name, ())
        wrong = None
        if transaction.resolved == "committed":
            if not history.loses_acknowledged:
                wrong = _missing(transaction, found)
        elif transaction.resolved == "rolled back":
            wrong = "it is there" if found else None
        elif transaction.resolved != "unknown":
            wrong = "which is no outcome"
        if wrong is not None:
            violations.append(
                Violation(
                    "outcomes are true",
                    "I13",
                    transaction.name,
                    f"it was found to be {transaction.resolved}: {wrong}",
                    (repr(transaction), *map(repr, found)),
                )
            )
    return violations

"""No update is lost: each number follows from the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.elements import Elements
from fencing.torture.checking.views import by_row, external_reads, is_set, transactions_by_name
from fencing.torture.checking.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencing.torture.history import History, Transaction, Write

__all__ = ["no_lost_update"]


def no_lost_update(history: History) -> list[Violation]:
    """I3: a row's numbers are 1, 2, 3 ..., each written by who had read the one before.

    An element's number is the next after those in its set. One that is in it must not be inserted
    again; one that was deleted may be, if no larger one is left.
    """
    transactions = transactions_by_name(history)
    violations = []
    for row, writes in by_row(history).items():
        violations += _elements(row, writes) if is_set(writes) else _numbers(row, writes)
        violations += _overwritten(row, writes, transactions)
    return violations


def _violation(row: str, message: str, *evidence: object) -> Violation:
    return Violation("no lost update", "I3", row, message, tuple(map(repr, evidence)))


def _numbers(row: str, writes: Sequence[Write]) -> list[Violation]:
    violations = []
    before: Write | None = None
    for write in writes:
        number = before.new if before is not None else 0
        if write.old != number:
            message = f"{write.old} was changed to {write.new} where {number} was before"
            violations.append(_violation(row, message, before, write))
        elif write.old is None or write.new != write.old + 1:
            message = f"{write.old} was changed to {write.new}"
            violations.append(_violation(row, message, write))
        before = write
    return violations


def _elements(row: str, writes: Sequence[Write]) -> list[Violation]:
    violations = []
    elements = Elements()
    for write in writes:
        if write.new is not None:
            if elements.counts[write.new] > 0:
                violations.append(_violation(row, f"{write.new} was inserted twice", write))
            elif not elements.largest < write.new <= elements.highest + 1:
                message = f"{write.new} was inserted after {elements.largest}"
                violations.append(_violation(row, message, write))
        if write.gone is not None and elements.counts[write.gone] <= 0:
            message = f"{write.gone} was deleted and was not there"
            violations.append(_violation(row, message, write))
        elements.apply(write)
    return violations


def _overwritten(
    row: str, writes: Sequence[Write], transactions: Mapping[str, Transaction]
) -> list[Violation]:
    """Transactions that did not overwrite what they had read."""
    violations = []
    seen = set()
    for write in writes:
        if write.new is None or write.transaction is None or write.transaction in seen:
            continue
        seen.add(write.transaction)
        transaction = transactions.get(write.transaction)
        if transaction is None:
            continue
        before = write.old if write.change == "update" else write.new - 1
        for read in external_reads(transaction):
            if read.row == row and read.value != before:
                message = f"{transaction.name} had read {read.value} and overwrote {before}"
                violations.append(_violation(row, message, transaction, write))
    return violations

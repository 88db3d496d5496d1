"""Under which leases the database let write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.torture.checking.views import (
    REFUSABLE,
    acquisitions_by_name,
    by_resource,
    present,
    transactions_by_name,
)
from fencing.torture.checking.violation import Violation
from fencing.torture.history import Admission, Outcome, Write

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fencing.torture.history import Acquisition, History, Transaction

__all__ = ["nothing_leaks", "nothing_without_a_lease"]


def nothing_without_a_lease(history: History) -> list[Violation]:
    """I6: each write is one of a worker, under a lease it was granted and that was admitted.

    Its fence was there at the time, too: a fence that was pruned is not an acceptance.
    """
    transactions = transactions_by_name(history)
    acquisitions = acquisitions_by_name(history)
    violations = _attempts(history, "unfenced", "nothing without a lease", "I6")
    for resource, events in by_resource(history).items():
        admitted: dict[tuple[int, str], Admission] = {}
        for event in events:
            if isinstance(event, Admission):
                if event.pruned:
                    admitted.clear()
                else:
                    admitted[event.token, event.holder] = event
                continue
            wrong = _database_side(event, admitted) or _worker_side(
                event, transactions, acquisitions
            )
            if wrong is not None:
                violations.append(
                    Violation("nothing without a lease", "I6", resource, wrong, (repr(event),))
                )
    return violations


def _database_side(write: Write, admitted: Mapping[tuple[int, str], Admission]) -> str | None:
    if write.token is None or not write.holder:
        return f"{write.row} was written without a lease"
    if (write.token, write.holder) not in admitted:
        return f"{write.row} was written under token {write.token}, which was not admitted"
    return None


def _worker_side(
    write: Write,
    transactions: Mapping[str, Transaction],
    acquisitions: Mapping[str, Acquisition],
) -> str | None:
    transaction = transactions.get(write.transaction or "")
    if transaction is None:
        return f"{write.row} was written by {write.transaction}, a transaction of no worker"
    if transaction.kind in REFUSABLE:
        return None  # said once of the transaction
    lease = (write.token, write.holder)
    if transaction.leases.get(write.resource) != lease:
        return f"{write.row} was written under token {write.token}, not the transaction's lease"
    acquisition = acquisitions.get(transaction.acquisition or "")
    believed = acquisition.leases.get(write.resource) if acquisition else None
    if believed is None or (believed.token, believed.holder) != lease:
        return f"{write.row} was written under token {write.token}, which was never granted"
    return None


def nothing_leaks(history: History) -> list[Violation]:
    """I9: a claim that another transaction has left behind lets nobody write."""
    return _attempts(history, "leaked", "nothing leaks", "I9")


def _attempts(history: History, kind: str, checker: str, invariant: str) -> list[Violation]:
    accepted = present(history)
    violations = []
    for transaction in history.transactions:
        if transaction.kind != kind:
            continue
        if transaction.name in accepted:
            message = "it was accepted"
        elif transaction.outcome is Outcome.COMMITTED:
            message = "it was told that it is committed"
        else:
            continue
        violations.append(
            Violation(checker, invariant, transaction.name, message, (repr(transaction),))
        )
    return violations

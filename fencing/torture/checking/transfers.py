"""Money that is moved is all there, on both accounts or on none."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from fencing.torture.checking.views import by_transaction, transactions_by_name
from fencing.torture.checking.violation import Violation

if TYPE_CHECKING:
    from fencing.torture.history import History, Write

__all__ = ["all_or_none"]

_ACCOUNTS_OF_A_TRANSFER = 2


def all_or_none(history: History) -> list[Violation]:
    """I12: a transaction's writes are one transaction's in the database, and money is conserved.

    A transfer changes two accounts. What one transaction of the database adds to accounts is zero
    in all. Each balance is what the account began with and what was added since, and their sum is
    what it was.
    """
    return [*_transfers(history), *_amounts(history), *_balances(history)]


def _violation(subject: str, message: str, *evidence: object) -> Violation:
    return Violation("all or none", "I12", subject, message, tuple(map(repr, evidence)))


def _transfers(history: History) -> list[Violation]:
    transactions = transactions_by_name(history)
    violations = []
    for name, writes in by_transaction(history).items():
        xids = {write.xid for write in writes}
        if len(xids) > 1:
            message = f"its writes are of {len(xids)} transactions: {sorted(xids)}"
            violations.append(_violation(name, message, *writes))
        transaction = transactions.get(name)
        if transaction is None or transaction.kind != "transfer":
            continue
        rows = [write.row for write in writes]
        if len(rows) != _ACCOUNTS_OF_A_TRANSFER or len(set(rows)) != _ACCOUNTS_OF_A_TRANSFER:
            violations.append(_violation(name, f"it changed {', '.join(rows)}", *writes))
    return violations


def _amounts(history: History) -> list[Violation]:
    by_xid: defaultdict[int, list[Write]] = defaultdict(list)
    for write in history.writes:
        if write.amount:
            by_xid[write.xid].append(write)
    violations = []
    for xid, writes in by_xid.items():
        amount = sum(write.amount for write in writes)
        if amount:
            message = f"it added {amount} to all accounts together"
            violations.append(_violation(f"xid {xid}", message, *writes))
    return violations


def _balances(history: History) -> list[Violation]:
    added: Counter[str] = Counter()
    for write in history.writes:
        added[write.row] += write.amount
    violations = []
    balances = history.final.balances
    for row in sorted({*balances, *(row for row, amount in added.items() if amount)}):
        expected = history.initial_balance + added[row]
        if balances.get(row) != expected:
            message = f"its balance is {balances.get(row)} where {expected} is accounted for"
            violations.append(_violation(row, message))
    total, began_with = sum(balances.values()), history.initial_balance * len(balances)
    if total != began_with:
        violations.append(
            _violation("all accounts", f"they hold {total}, and began with {began_with}")
        )
    return violations

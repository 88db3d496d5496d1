"""A history's records, found by what they are about."""

from __future__ import annotations

from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from fencing.torture.history import (
        Acquisition,
        Admission,
        Believed,
        History,
        Read,
        Transaction,
        Write,
    )

__all__ = [
    "LOOKING",
    "READMISSION",
    "REFUSABLE",
    "WORKING",
    "WRITING",
    "acquisitions_by_name",
    "by_resource",
    "by_row",
    "by_transaction",
    "external_reads",
    "in_order",
    "is_set",
    "leases_by_resource",
    "present",
    "transactions_by_name",
]

WRITING = frozenset({"add", "append", "transfer"})
"""Kinds of transactions that change rows when they are committed."""

LOOKING = frozenset({"look", "stream"})
"""Kinds of transactions that only read."""

WORKING = WRITING | LOOKING
"""Kinds of transactions that do work under leases."""

READMISSION = "readmission"
"""What a worker's admission of leases that it has already is called; it does no work."""

REFUSABLE = frozenset({"unfenced", "leaked"})
"""Kinds of attempts that must be refused."""

T = TypeVar("T")


def _grouped(records: Iterable[T], key: Callable[[T], str]) -> dict[str, list[T]]:
    groups: defaultdict[str, list[T]] = defaultdict(list)
    for record in records:
        groups[key(record)].append(record)
    return dict(groups)


def in_order(writes: Iterable[Write]) -> list[Write]:
    """Writes in the order in which they were accepted."""
    return sorted(writes, key=attrgetter("seq"))


def by_row(history: History) -> dict[str, list[Write]]:
    """Writes of each row, in order."""
    return _grouped(in_order(history.writes), attrgetter("row"))


def by_transaction(history: History) -> dict[str, list[Write]]:
    """Writes of each transaction that says which it is, in order."""
    named = (write for write in history.writes if write.transaction is not None)
    return _grouped(in_order(named), attrgetter("transaction"))


def by_resource(history: History) -> dict[str, list[Write | Admission]]:
    """Writes and admissions of each resource, in their common order."""
    events: list[Write | Admission] = [*history.writes, *history.admissions]
    events.sort(key=attrgetter("seq"))
    return _grouped(events, attrgetter("resource"))


def transactions_by_name(history: History) -> dict[str, Transaction]:
    """Transactions by their names."""
    return {transaction.name: transaction for transaction in history.transactions}


def acquisitions_by_name(history: History) -> dict[str, Acquisition]:
    """Acquisitions by their names."""
    return {acquisition.name: acquisition for acquisition in history.acquisitions}


def leases_by_resource(history: History) -> dict[str, list[Believed]]:
    """Granted leases on each resource, by the time they were granted."""
    leases = [lease for each in history.acquisitions for lease in each.leases.values()]
    leases.sort(key=attrgetter("since"))
    return _grouped(leases, attrgetter("resource"))


def present(history: History) -> frozenset[str]:
    """Names of the transactions of which the database has accepted anything."""
    return frozenset(write.transaction for write in history.writes if write.transaction is not None)


def external_reads(transaction: Transaction) -> Sequence[Read]:
    """What a transaction read of others' work: not what it has written itself.

    One that only looks has no work of its own. Any other may read again what it has just written;
    of each row only the first read is certain to be of others.
    """
    if transaction.kind in LOOKING:
        return transaction.reads
    first: Mapping[str, Read] = {read.row: read for read in reversed(transaction.reads)}
    return tuple(first.values())


def is_set(writes: Iterable[Write]) -> bool:
    """Whether a row with these writes is a set: elements are inserted and deleted."""
    return any(write.change != "update" for write in writes)

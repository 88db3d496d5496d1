"""What was read under a lease is not older than its admission."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

from fencing.torture.checking.elements import largest_after, least_from_here
from fencing.torture.checking.views import by_row, external_reads, is_set
from fencing.torture.checking.violation import Violation
from fencing.torture.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from fencing.torture.history import History, Read, Transaction, Write

__all__ = ["reads_are_current"]


@dataclass(slots=True)
class _Row:
    """The least that may be read of one row.

    Attributes:
        tokens: Of its accepted writes, ascending.
        least: What must be read under a token larger than each, likewise.
        own: What must be read once a transaction's write has been acknowledged.
        grows: Whether its number never goes down.
    """

    tokens: list[int] = field(default_factory=list)
    least: list[int] = field(default_factory=list)
    own: dict[str, int] = field(default_factory=dict)
    grows: bool = True

    def under(self, token: int) -> int:
        """What must be read under this token."""
        place = bisect_left(self.tokens, token)
        return self.least[place - 1] if place else 0


@dataclass(slots=True)
class _Visit:
    """A transaction's reads of one row under one lease."""

    transaction: Transaction
    reads: list[Read]


def reads_are_current(history: History) -> list[Violation]:
    """I4: what is read under a lease contains all that was accepted under smaller tokens.

    It contains the lease's own acknowledged writes, too, and never goes back from one transaction
    to the next. Transactions of one lease that overlap say nothing of each other. It does not
    matter how the reading transaction ended: whoever has been admitted reads what was there.

    Not of a database that has lost what it acknowledged: what was read there is gone with it.
    """
    if history.loses_acknowledged:
        return []
    rows = {row: _row(writes) for row, writes in by_row(history).items()}
    unwritten = _Row()
    visits: defaultdict[tuple[str, int, str], list[_Visit]] = defaultdict(list)
    violations = []
    for transaction in history.transactions:
        visited: dict[tuple[str, int, str], _Visit] = {}
        for read in external_reads(transaction):
            lease = transaction.leases.get(read.resource)
            if lease is None:
                continue
            token, holder = lease
            least = rows.get(read.row, unwritten).under(token)
            if read.value < least:
                message = f"token {token} read {read.value} where smaller tokens had left {least}"
                violations.append(_violation(read.row, message, transaction))
            key = (read.row, token, holder)
            if key not in visited:
                visited[key] = _Visit(transaction, [])
                visits[key].append(visited[key])
            visited[key].reads.append(read)
    for (row, token, _holder), of_lease in visits.items():
        violations += _one_after_the_other(row, token, of_lease, rows.get(row, unwritten))
    return violations


def _violation(row: str, message: str, *evidence: object) -> Violation:
    return Violation("reads are current", "I4", row, message, tuple(map(repr, evidence)))


def _row(writes: Sequence[Write]) -> _Row:
    if is_set(writes):
        largest = largest_after(writes)
        left = least_from_here(largest)[1:]
        grows = largest == sorted(largest)
    else:
        left = [write.new or 0 for write in writes]
        grows = True
    by_token: dict[int, int] = {}
    own: dict[str, int] = {}
    for write, number in zip(writes, left, strict=True):
        if write.token is not None:
            by_token[write.token] = max(number, by_token.get(write.token, 0))
        if write.transaction is not None:
            own[write.transaction] = number
    tokens = sorted(by_token)
    least = list(accumulate((by_token[token] for token in tokens), max))
    return _Row(tokens, least, own, grows)


def _one_after_the_other(
    row: str, token: int, visits: Sequence[_Visit], accepted: _Row
) -> Iterator[Violation]:
    """What transactions of one lease read too little of, given those that ended before them."""
    ended = sorted(visits, key=_ended_at)
    least, because, next_to_end = 0, ended[0], 0
    for visit in sorted(visits, key=lambda each: each.transaction.began_at):
        while (
            next_to_end < len(ended) and _ended_at(ended[next_to_end]) < visit.transaction.began_at
        ):
            earlier = ended[next_to_end]
            next_to_end += 1
            known = max(read.value for read in earlier.reads) if accepted.grows else 0
            if earlier.transaction.outcome is Outcome.COMMITTED:
                known = max(known, accepted.own.get(earlier.transaction.name, 0))
            if known > least:
                least, because = known, earlier
        going = 0
        for read in visit.reads:
            if read.value < least:
                message = f"token {token} read {read.value} after it had known {least}"
                yield _violation(row, message, because.transaction, visit.transaction)
            elif accepted.grows and read.value < going:
                message = f"token {token} read {read.value} after {going} in one transaction"
                yield _violation(row, message, visit.transaction)
            going = max(going, read.value)


def _ended_at(visit: _Visit) -> float:
    ended_at = visit.transaction.ended_at
    return inf if ended_at is None else ended_at

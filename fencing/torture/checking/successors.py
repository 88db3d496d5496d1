"""Whoever waits for a lease gets it, once the one before is over."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from fencing.torture.checking.excuses import Faults, Rivals
from fencing.torture.checking.violation import Violation
from fencing.torture.history import Harm

if TYPE_CHECKING:
    from fencing.torture.history import Acquisition, History, Transaction

__all__ = ["longest_wait", "successors_proceed"]

_TAKES = 2.0
"""A lock service that was not asked to wake waiters up is asked again within this many seconds."""

_STOPS = 1.0
"""How long an admission may take when nothing is in its way, on a busy machine, in seconds."""


def bound_of(ttl: float) -> float:
    """How long a lease can be in its successor's way after its trust, in seconds.

    The lock service forgets it within its length; a transaction of it that was left open ends
    within what was left of the trust when it was last active, which is at most that length again.
    """
    return 2 * ttl + _TAKES


def successors_proceed(history: History) -> list[Violation]:
    """I14: a successor proceeds within its predecessor's bound, or learns who blocks it.

    - Whoever was not told of a backend in the way, granted a lease or not, cannot have waited for
      longer than that bound while nobody else had the lock, and nothing was wrong with the lock
      service, the database or itself.
    - An admission waits only for transactions that were open when it began: those that begin later
      wait for it. This shows only where it was seen when the admission began.
    """
    return [*_starved(history), *_overtaken_by_readers(history)]


def _violation(acquisition: Acquisition, message: str) -> Violation:
    return Violation("successors proceed", "I14", acquisition.name, message, (repr(acquisition),))


def _starved(history: History) -> list[Violation]:
    rivals = Rivals(history.acquisitions, lingering=False)
    faults = Faults(history)
    longest_ttl = max((each.ttl for each in history.acquisitions), default=0.0)
    bound = bound_of(longest_ttl) + history.lingers
    violations = []
    for acquisition in history.acquisitions:
        since, until = acquisition.asked_at, acquisition.answered_at
        if acquisition.blocked_by or until is None:
            continue
        if acquisition.leases:  # its admission is judged by itself
            until = acquisition.admission_began_at or until
        if until - since <= bound:  # as most: it need not be looked who was in the way
            continue
        taken = [(begin, end) for begin, end, _name in rivals.during(acquisition, since, until)]
        harmful = [
            *faults.during(since, until, Harm.LOCK_SERVICE, Harm.DATABASE, after=longest_ttl),
            *faults.of_worker(acquisition.worker, since, until),
        ]
        taken += [(fault.since, fault.until + longest_ttl) for fault in harmful]
        free = _longest_gap(since, until, taken)
        if free > bound:
            granted = "late" if acquisition.leases else "not"
            message = f"it was {granted} granted, and nobody was in the way for {free:.3f} s"
            violations.append(_violation(acquisition, message))
    return violations


def _longest_gap(since: float, until: float, taken: list[tuple[float, float]]) -> float:
    gaps, at = [], since
    for begin, end in sorted(taken):
        gaps.append(begin - at)
        at = max(at, end)
    return max([*gaps, until - at])


def _overtaken_by_readers(history: History) -> list[Violation]:
    faults = Faults(history)
    of_resource: defaultdict[str, list[Transaction]] = defaultdict(list)
    for transaction in history.transactions:
        for resource in transaction.leases:
            of_resource[resource].append(transaction)
    violations = []
    for acquisition in history.acquisitions:
        began, answered = acquisition.admission_began_at, acquisition.answered_at
        if began is None or answered is None:
            continue
        if answered - began <= _STOPS:  # as above
            continue
        open_until = [
            _out_of_the_way(transaction, acquisition)
            for resource in acquisition.resources
            for transaction in of_resource[resource]
            if transaction.acquisition != acquisition.name and transaction.began_at <= began
        ]
        excused = any(faults.during(began, answered, Harm.DATABASE, after=_STOPS)) or any(
            faults.of_worker(acquisition.worker, began, answered)
        )
        waited = answered - max([began, *open_until])
        if waited > _STOPS and not excused:
            message = (
                f"its admission took {waited:.3f} s longer than the transactions that were open "
                "when it began"
            )
            violations.append(_violation(acquisition, message))
    return violations


def _out_of_the_way(transaction: Transaction, successor: Acquisition) -> float:
    if transaction.ended_at is None:
        return transaction.began_at + bound_of(successor.ttl)
    return transaction.ended_at


def longest_wait(history: History) -> tuple[float, str] | None:
    """The longest that a successor waited after it had asked and its predecessor's trust was over.

    Returns:
        The time in seconds, and the acquisition's name; ``None`` if nothing was granted.
    """
    rivals = Rivals(history.acquisitions, lingering=False)
    waits = []
    for acquisition in history.acquisitions:
        if not acquisition.leases or acquisition.answered_at is None:
            continue
        since, until = acquisition.asked_at, acquisition.answered_at
        ended = [end for _begin, end, _name in rivals.during(acquisition, since, until)]
        free_at = max([since, *(min(end, until) for end in ended)])
        waits.append((until - free_at, acquisition.name))
    return max(waits, default=None)

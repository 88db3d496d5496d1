"""Refused transactions, and why each can have been."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import TYPE_CHECKING

from fencing.torture.checking.excuses import Faults, Rivals
from fencing.torture.checking.views import REFUSABLE, acquisitions_by_name
from fencing.torture.history import Harm, Outcome

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.torture.history import Acquisition, History, Transaction

__all__ = ["wrongly_refused"]

_ROUNDED = 0.005
"""Limits are whole milliseconds; so one may fire this many seconds before the trust ends."""

_LOST = frozenset({"LeaseExpiredError", "LeaseLostError"})


class _Reason(enum.Enum):
    TRUST_OVER = enum.auto()
    OVERTAKEN = enum.auto()
    PRUNED = enum.auto()
    HARMED = enum.auto()


_SHOWN_BY = {
    "UnfencedWriteError": {_Reason.PRUNED},
    "StaleFenceError": {_Reason.OVERTAKEN, _Reason.PRUNED},
}
"""Errors that say why, and what shows that it is true."""

_UNTRUE = {
    "UnfencedWriteError": "had an admitted lease",
    "StaleFenceError": "nobody had overtaken it",
}


class _Overtaken:
    """Who can have overtaken whom, and by when."""

    def __init__(self, history: History) -> None:
        asked_at = {
            (resource, lease.token, lease.holder): acquisition.asked_at
            for acquisition in history.acquisitions
            for resource, lease in acquisition.leases.items()
        }
        admitted: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        self.tokens: defaultdict[str, set[int]] = defaultdict(set)
        self.pruned: set[str] = set()
        for admission in history.admissions:
            self.tokens[admission.resource].add(admission.token)
            if admission.pruned:
                self.pruned.add(admission.resource)
            # Of an acquisition that was not granted, or a raise by hand, nobody knows.
            when = asked_at.get((admission.resource, admission.token, admission.holder), -inf)
            admitted[admission.resource].append((-admission.token, when))
        self._tokens: dict[str, list[int]] = {}
        self._earliest: dict[str, list[float]] = {}
        for resource, of_one in admitted.items():
            of_one.sort()  # the largest token first
            self._tokens[resource] = [token for token, _when in of_one]
            self._earliest[resource] = list(accumulate((when for _token, when in of_one), min))

    def by(self, resource: str, token: int, moment: float) -> bool:
        """Whether a newer token can have been admitted by then."""
        newer = bisect_left(self._tokens.get(resource, []), -token)
        return newer > 0 and self._earliest[resource][newer - 1] <= moment


@dataclass(slots=True)
class _Run:
    history: History
    overtaken: _Overtaken
    faults: Faults
    evicting: Rivals
    acquisitions: dict[str, Acquisition]
    without_faults: bool


def wrongly_refused(history: History) -> Iterator[tuple[Transaction, str]]:
    """Transactions that were refused without a reason, and what is wrong with each refusal."""
    run = _Run(
        history,
        _Overtaken(history),
        Faults(history),
        Rivals((each for each in history.acquisitions if each.evicts), lingering=True),
        acquisitions_by_name(history),
        without_faults=not history.faults and history.keeps_order,
    )
    for transaction in history.transactions:
        ended_at, wrong = transaction.ended_at, None
        if ended_at is None:
            continue  # nobody was told how it ended
        if transaction.outcome is Outcome.REFUSED and transaction.kind not in REFUSABLE:
            wrong = _wrongly_refused(transaction, ended_at, run)
        elif transaction.outcome in (Outcome.FAILED, Outcome.UNKNOWN) and run.without_faults:
            wrong = _wrongly_ended(transaction, ended_at, run)
        if wrong is not None:
            yield transaction, wrong


def _wrongly_refused(transaction: Transaction, ended_at: float, run: _Run) -> str | None:
    """What is wrong with a refusal, if anything is."""
    if transaction.acquisition is None:
        return "it was refused, and had no lease to lose"
    acquisition = run.acquisitions[transaction.acquisition]
    reasons = set(_reasons(transaction, acquisition, run, ended_at))
    if run.without_faults and _Reason.TRUST_OVER not in reasons:
        return "it was refused while its leases were trusted, in a run without faults"
    if run.history.loses_acknowledged and any(
        run.faults.during(ended_at, ended_at, Harm.DATABASE, after=inf)
    ):
        return None  # what overtook it may be lost
    if transaction.error in _SHOWN_BY and reasons.isdisjoint(_SHOWN_BY[transaction.error]):
        return f"it was refused by {transaction.error}, and {_UNTRUE[transaction.error]}"
    if not reasons:
        return "it was refused while its leases were trusted and nobody had overtaken it"
    return _wrong_mark(transaction, run)


def _wrongly_ended(transaction: Transaction, ended_at: float, run: _Run) -> str | None:
    """What is wrong with a session that ended, in a run without faults: only a limit may end it.

    Whoever reads past our hooks, or through a pooler, is told so in the words of a driver.
    """
    if transaction.acquisition is not None:
        acquisition = run.acquisitions[transaction.acquisition]
        if _Reason.TRUST_OVER in _reasons(transaction, acquisition, run, ended_at):
            return None
    return f"it is {transaction.outcome} while its leases were trusted, in a run without faults"


def _reasons(
    transaction: Transaction, acquisition: Acquisition, run: _Run, ended_at: float
) -> Iterator[_Reason]:
    """Why it can have been refused."""
    if ended_at >= _trusted_until(acquisition, transaction) - _ROUNDED:
        yield _Reason.TRUST_OVER
    if ended_at - transaction.began_at >= acquisition.ttl:
        yield _Reason.TRUST_OVER  # the trust it began with; its lease was renewed since
    if not run.overtaken.pruned.isdisjoint(transaction.leases):
        yield _Reason.PRUNED
    for resource, (token, _holder) in transaction.leases.items():
        if run.overtaken.by(resource, token, ended_at):
            yield _Reason.OVERTAKEN
    # Its session can have been ended, or its lock forgotten.
    harms = [Harm.SESSIONS, Harm.DATABASE]
    if transaction.error in _LOST:
        harms.append(Harm.LOCK_SERVICE)
    since = transaction.began_at
    if any(
        run.faults.during(since, ended_at, *harms, after=acquisition.ttl, worker=transaction.worker)
    ) or any(run.evicting.during(acquisition, since, ended_at)):
        yield _Reason.HARMED


def _trusted_until(acquisition: Acquisition, transaction: Transaction) -> float:
    # Who is refused releases at once; that is not why he was refused.
    presented = [acquisition.leases[resource] for resource in transaction.leases]
    return min(
        lease.until if lease.trusted_until is None else lease.trusted_until for lease in presented
    )


def _wrong_mark(transaction: Transaction, run: _Run) -> str | None:
    """Whether it was told of a mark that never was; floors of pruned fences are no one's."""
    told = transaction.current_token
    if told is None or run.overtaken.pruned:
        return None
    if any(told in run.overtaken.tokens[resource] for resource in transaction.leases):
        return None
    return f"it was told of the mark {told}, which was never admitted"

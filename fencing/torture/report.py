"""What is told of a run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from fencing.torture.checking import check, longest_wait
from fencing.torture.checking.views import READMISSION, REFUSABLE, WORKING
from fencing.torture.history import Outcome

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping, Sequence

    from fencing.torture.checking import Violation
    from fencing.torture.history import History, Transaction
    from fencing.torture.settings import Settings

__all__ = ["Report"]

_SHOWN = 20
"""Violations that are shown; all of them are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Figures of a run, and what was wrong.

    What workers did in the database is of three sorts, each counted by outcome
    (:class:`fencing.torture.history.Outcome`): work under leases, admissions made again, which do
    no work, and attempts that must be refused.

    Attributes:
        lock_service: Who granted leases.
        guarded: Whether there was a guard.
        seed: Of everything that was chosen.
        seconds: How long workers worked, in seconds.
        interrupted: Whether that was ended early.
        acquisitions: How many were granted.
        not_granted: How many were not, by error.
        transactions: How many did work under leases, or tried to, by outcome.
        readmissions: How often leases were admitted again before further work, by outcome.
        attempts: How many tried to work without a lease, or with the claim that another transaction
            had left behind, by outcome. They are refused, unless something else ends them before.
        writes: How many changes of rows the database accepted.
        refusals: How many of ``transactions`` were refused, by error. Readmissions and attempts
            that were refused do not belong here: they are told by their outcomes.
        resolved: What unknown outcomes of work and of attempts were found to be.
        faults: How many, by kind.
        left_out: What the run went without, as it is not installed; and what would bring it.
        longest_wait: The longest that a successor waited for a lease that it then got, in seconds;
            ``None`` if nobody did.
        violations: All of them.
    """

    lock_service: str
    guarded: bool
    seed: int
    seconds: float
    interrupted: bool
    acquisitions: int
    not_granted: Mapping[str, int]
    transactions: Mapping[str, int]
    readmissions: Mapping[str, int]
    attempts: Mapping[str, int]
    writes: int
    refusals: Mapping[str, int]
    resolved: Mapping[str, int]
    faults: Mapping[str, int]
    left_out: Sequence[str]
    longest_wait: float | None
    violations: Sequence[Violation]

    @classmethod
    def of(cls, history: History, settings: Settings, *, left_out: Sequence[str] = ()) -> Self:
        """Check a history, and tell of it."""
        longest = longest_wait(history)
        work = _of_kinds(history, WORKING)
        return cls(
            lock_service=history.lock_service,
            guarded=settings.guarded,
            seed=settings.seed,
            seconds=round(history.seconds, 1),
            interrupted=history.interrupted,
            acquisitions=sum(1 for one in history.acquisitions if one.leases),
            not_granted=_count(one.error for one in history.acquisitions if one.error),
            transactions=_outcomes(work),
            readmissions=_outcomes(_of_kinds(history, {READMISSION})),
            attempts=_outcomes(_of_kinds(history, REFUSABLE)),
            writes=len(history.writes),
            refusals=_count(one.error or "" for one in work if one.outcome is Outcome.REFUSED),
            resolved=_count(one.resolved for one in history.transactions if one.resolved),
            faults=_count(fault.kind for fault in history.faults),
            left_out=tuple(left_out),
            longest_wait=None if longest is None else round(longest[0], 3),
            violations=check(history),
        )

    @property
    def lost_updates(self) -> bool:
        """Whether updates were lost: what a run without a guard is expected to show."""
        return any(violation.invariant == "I3" for violation in self.violations)

    @property
    def as_expected(self) -> bool:
        """Whether nothing was violated; of a run without a guard, whether updates were lost."""
        return not self.violations if self.guarded else self.lost_updates

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**dataclasses.asdict(self), "as_expected": self.as_expected}

    def lines(self) -> list[str]:
        """As people read it."""
        guarded = "guarded" if self.guarded else "without a guard"
        early = ", interrupted" if self.interrupted else ""
        told = [
            f"{self.lock_service}, {guarded}, seed {self.seed}, {self.seconds:g} s{early}",
            f"  leases        {self.acquisitions} granted{_listed(self.not_granted, '; not: ')}",
            f"  transactions  {sum(self.transactions.values())}{_listed(self.transactions, ': ')}",
            f"  readmissions  {sum(self.readmissions.values())}{_listed(self.readmissions, ': ')}",
            f"  attempts      {sum(self.attempts.values())}{_listed(self.attempts, ': ')}",
            f"  writes        {self.writes}",
            f"  refusals      {sum(self.refusals.values())}{_listed(self.refusals, ': ')}",
            f"  faults        {sum(self.faults.values())}{_listed(self.faults, ': ')}",
        ]
        if self.left_out:
            told.append(f"  left out      {', '.join(self.left_out)}")
        if self.longest_wait is not None:
            told.append(f"  longest wait  {self.longest_wait:.2f} s")
        if self.resolved:
            told.append(f"  resolved      {_listed(self.resolved, '')}")
        told.append(f"  violations    {len(self.violations)}")
        for violation in self.violations[:_SHOWN]:
            told.append(
                f"    {violation.invariant} {violation.checker}: {violation.subject}: "
                f"{violation.message}"
            )
            told += [f"      {line}" for line in violation.evidence]
        if len(self.violations) > _SHOWN:
            told.append(f"    and {len(self.violations) - _SHOWN} more")
        return told


def _of_kinds(history: History, kinds: Container[str]) -> list[Transaction]:
    return [one for one in history.transactions if one.kind in kinds]


def _outcomes(transactions: Iterable[Transaction]) -> dict[str, int]:
    return _count(one.outcome.value for one in transactions)


def _count(names: Iterable[str | None]) -> dict[str, int]:
    return dict(Counter(name for name in names if name is not None).most_common())


def _listed(counts: Mapping[str, int], before: str) -> str:
    if not counts:
        return ""
    return before + ", ".join(f"{name} {number}" for name, number in counts.items())

"""What came of an act, and whether it is what was promised."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from fencing.demo.bank import OPENING_BALANCE, WITHDRAWALS
from fencing.demo.process import DemonstrationError
from fencing.schema.names import STALE, UNFENCED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fencing.demo.process import Report

__all__ = ["Outcome", "broken_promises", "lost_updates", "outcome_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of an act.

    Attributes:
        expected: The balance that should be left: less every withdrawal that was acknowledged.
        actual: The balance that is left.
        lost_updates: How many acknowledged withdrawals are not in it.
        refused: How many withdrawals were refused.
        error: The error that the refused one got.
        sqlstate: What the database has answered to it; ``None`` if it was not asked.
        sent: How many statements were sent to it after the balance had been computed.
        tokens: The fencing token of each process.
        unfenced_write: What the database has answered to a write without a lease; ``None`` if it
            was accepted, or not tried.
    """

    expected: int
    actual: int
    lost_updates: int
    refused: int
    error: str | None
    sqlstate: str | None
    sent: int | None
    tokens: Mapping[str, int]
    unfenced_write: str | None = None


def outcome_of(
    reports: Iterable[Report], actual: int, unfenced_write: str | None = None
) -> Outcome:
    """Make out what came of an act.

    Args:
        reports: What the processes have reported.
        actual: The balance that is left.
        unfenced_write: See :class:`Outcome`.

    Raises:
        DemonstrationError: The balance is none that these withdrawals can leave.
    """
    reports = list(reports)
    acknowledged = {report.who for report in reports if report.event == "wrote"}
    refusals = [report.facts for report in reports if report.event == "refused"]
    refusal = refusals[0] if refusals else {}
    return Outcome(
        expected=OPENING_BALANCE - sum(WITHDRAWALS[who] for who in acknowledged),
        actual=actual,
        lost_updates=len(lost_updates(acknowledged, actual)),
        refused=len(refusals),
        error=refusal.get("error"),
        sqlstate=refusal.get("sqlstate"),
        sent=refusal.get("sent"),
        tokens={r.who: r.facts["token"] for r in reports if r.event == "acquired"},
        unfenced_write=unfenced_write,
    )


def lost_updates(acknowledged: Iterable[str], actual: int) -> tuple[str, ...]:
    """Whose acknowledged withdrawals are missing from a balance.

    Args:
        acknowledged: Whose withdrawals were acknowledged.
        actual: The balance that is left.

    Raises:
        DemonstrationError: The balance is none that these withdrawals can leave.
    """
    everyone = sorted(acknowledged)
    for count in range(len(everyone) + 1):
        for lost in combinations(everyone, count):
            kept = sum(WITHDRAWALS[who] for who in everyone if who not in lost)
            if OPENING_BALANCE - kept == actual:
                return lost
    raise DemonstrationError(
        f"a balance of {actual} cannot come of {OPENING_BALANCE} and the acknowledged withdrawals "
        f"of {', '.join(everyone) or 'nobody'}"
    )


def broken_promises(outcomes: Mapping[str, Outcome]) -> list[str]:
    """What is not as the demonstration promises; nothing if all is well.

    Args:
        outcomes: Of the acts ``"unguarded"``, ``"expired"`` and ``"guarded"``.
    """
    return [
        f"{act}: {promise}"
        for act, check in _PROMISES.items()
        for promise, kept in check(outcomes[act])
        if not kept
    ]


def _unguarded(outcome: Outcome) -> Iterator[tuple[str, bool]]:
    yield "without a guard an update should have been lost, and was not", outcome.lost_updates == 1
    yield "without a guard nothing should have been refused", outcome.refused == 0


def _expired(outcome: Outcome) -> Iterator[tuple[str, bool]]:
    yield from _nothing_lost(outcome)
    yield "A should have got LeaseExpiredError", outcome.error == "LeaseExpiredError"
    yield "A should have sent nothing", outcome.sent == 0


def _guarded(outcome: Outcome) -> Iterator[tuple[str, bool]]:
    yield from _nothing_lost(outcome)
    yield "A should have got StaleFenceError", outcome.error == "StaleFenceError"
    yield "it should have been the database that refused", outcome.sqlstate == STALE
    yield "a write without a lease should have been refused", outcome.unfenced_write == UNFENCED


def _nothing_lost(outcome: Outcome) -> Iterator[tuple[str, bool]]:
    yield "an update was lost", outcome.lost_updates == 0
    yield "exactly one write should have been refused", outcome.refused == 1


_PROMISES = {"unguarded": _unguarded, "expired": _expired, "guarded": _guarded}

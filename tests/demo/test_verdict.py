"""What came of an act, and whether it is what was promised."""

from __future__ import annotations

import dataclasses

import pytest

from fencing.demo.process import DemonstrationError, Report
from fencing.demo.verdict import Outcome, broken_promises, lost_updates, outcome_of

TOKENS = {"A": 1, "B": 2}
AS_PROMISED = {
    "unguarded": Outcome(
        expected=50, actual=70, lost_updates=1, refused=0,
        error=None, sqlstate=None, sent=None, tokens=TOKENS,
    ),
    "expired": Outcome(
        expected=80, actual=80, lost_updates=0, refused=1,
        error="LeaseExpiredError", sqlstate=None, sent=0, tokens=TOKENS,
    ),
    "guarded": Outcome(
        expected=80, actual=80, lost_updates=0, refused=1,
        error="StaleFenceError", sqlstate="ZF001", sent=1, tokens=TOKENS, unfenced_write="ZF002",
    ),
}  # fmt: skip


def test_as_promised():
    assert broken_promises(AS_PROMISED) == []


@pytest.mark.parametrize(
    ("act", "changes", "words"),
    [
        ("unguarded", {"lost_updates": 0}, "should have been lost"),
        ("unguarded", {"refused": 1}, "nothing should have been refused"),
        ("expired", {"lost_updates": 1}, "was lost"),
        ("expired", {"refused": 0}, "exactly one write"),
        ("expired", {"error": "StaleFenceError"}, "LeaseExpiredError"),
        ("expired", {"sent": 1}, "sent nothing"),
        ("guarded", {"lost_updates": 1}, "was lost"),
        ("guarded", {"refused": 2}, "exactly one write"),
        ("guarded", {"error": "LeaseExpiredError"}, "StaleFenceError"),
        ("guarded", {"sqlstate": None}, "the database that refused"),
        ("guarded", {"unfenced_write": None}, "without a lease"),
    ],
)
def test_each_broken_promise_is_named(act: str, changes: dict[str, object], words: str):
    outcomes = {**AS_PROMISED, act: dataclasses.replace(AS_PROMISED[act], **changes)}
    [promise] = broken_promises(outcomes)
    assert promise.startswith(f"{act}: ")
    assert words in promise


@pytest.mark.parametrize(
    ("acknowledged", "actual", "lost"),
    [
        ("AB", 50, ()),
        ("AB", 70, ("B",)),
        ("AB", 80, ("A",)),
        ("AB", 100, ("A", "B")),
        ("B", 80, ()),
        ("B", 100, ("B",)),
        ("", 100, ()),
    ],
)
def test_a_balance_tells_whose_withdrawal_is_missing(acknowledged, actual, lost):
    assert lost_updates(acknowledged, actual) == lost


def test_a_balance_that_cannot_be_is_no_result():
    with pytest.raises(DemonstrationError, match="balance of 70 cannot come of"):
        lost_updates("B", 70)  # A was refused, and yet its withdrawal is there


def test_an_outcome_is_made_of_what_the_processes_reported():
    refusal = {"error": "StaleFenceError", "sqlstate": "ZF001", "sent": 1}
    reports = [
        Report("A", "acquired", 0.0, {"token": 7}),
        Report("B", "acquired", 1.0, {"token": 9}),
        Report("B", "wrote", 2.0, {}),
        Report("A", "refused", 3.0, refusal),
    ]
    assert outcome_of(reports, 80, "ZF002") == dataclasses.replace(
        AS_PROMISED["guarded"], tokens={"A": 7, "B": 9}
    )

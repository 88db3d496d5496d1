"""What a report counts as work, and what it tells apart from it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fencing.torture.checking.views import READMISSION, REFUSABLE, WORKING
from fencing.torture.history import Harm, Outcome
from fencing.torture.report import Report
from fencing.torture.settings import Settings
from fencing.torture.units import KINDS
from tests.support.histories import REGISTER, World, two_leases

SORTS = {
    **dict.fromkeys(sorted(WORKING), "transactions"),
    READMISSION: "readmissions",
    **dict.fromkeys(sorted(REFUSABLE), "attempts"),
}
"""Where each kind of transaction is counted."""


def test_every_kind_that_a_worker_does_is_of_one_sort() -> None:
    assert {kind.said or name for name, kind in KINDS.items()} | {READMISSION} == set(SORTS)
    assert len(SORTS) == len(WORKING) + 1 + len(REFUSABLE)


@pytest.mark.parametrize("outcome", [Outcome.COMMITTED, Outcome.REFUSED])
@pytest.mark.parametrize("kind", SORTS)
def test_each_kind_is_counted_where_it_belongs(kind: str, outcome: Outcome) -> None:
    world = World()
    overtaken = world.acquire("register:0", worker="w1.1")
    world.acquire("register:0", worker="w2.1")
    done = world.refuse(overtaken, REGISTER, outcome=outcome)
    world.transactions[-1] = replace(done, kind=kind)
    report = Report.of(world.history(), Settings())
    counted = {sort: getattr(report, sort) for sort in ("transactions", "readmissions", "attempts")}
    assert counted.pop(SORTS[kind]) == {outcome.value: 1}
    assert list(counted.values()) == [{}, {}]
    of_work = outcome is Outcome.REFUSED and kind in WORKING
    assert report.refusals == ({done.error: 1} if of_work else {})


def _some_of_each() -> World:
    world = two_leases()
    first, second = world.acquisitions
    world.refuse(first, REGISTER)
    world.fault("connections cut", "network", Harm.SESSIONS)
    world.readmit(first, outcome=Outcome.REFUSED, error="StaleFenceError", current_token=2)
    world.readmit(second)
    world.readmit(second)
    world.add(second, REGISTER, outcome=Outcome.UNKNOWN, resolved="rolled back")
    for kind in (*REFUSABLE, "leaked"):
        world.attempt(kind, REGISTER)
    world.attempt("unfenced", REGISTER, outcome=Outcome.CUT_OFF, error=None)
    return world


def test_what_is_told_to_programs() -> None:
    report = Report.of(_some_of_each().history(), Settings())
    told = json.loads(json.dumps(report.to_dict()))
    assert told["transactions"] == {"committed": 2, "refused": 1, "unknown": 1}
    assert told["readmissions"] == {"committed": 2, "refused": 1}
    assert told["attempts"] == {"refused": 3, "cut off": 1}
    assert told["refusals"] == {"StaleFenceError": 1}
    assert told["resolved"] == {"rolled back": 1}
    assert told["as_expected"] is True


def test_what_is_told_to_people() -> None:
    lines = Report.of(_some_of_each().history(), Settings()).lines()
    start = lines.index("  transactions  4: committed 2, refused 1, unknown 1")
    assert lines[start + 1 : start + 5] == [
        "  readmissions  3: committed 2, refused 1",
        "  attempts      4: refused 3, cut off 1",
        "  writes        2",
        "  refusals      1: StaleFenceError 1",
    ]
    assert "  readmissions  0" in Report.of(two_leases().history(), Settings()).lines()


@pytest.mark.parametrize("guarded", [True, False])
def test_who_only_admits_again_and_tries_in_vain_has_done_nothing(*, guarded: bool) -> None:
    world = World()
    name = world.acquire("register:0")
    world.readmit(name)
    world.attempt("unfenced", REGISTER)
    report = Report.of(world.history(), Settings(guarded=guarded))
    assert report.transactions == {}
    assert not report.as_expected
    early = Report.of(replace(world.history(), interrupted=True), Settings())
    assert early.as_expected

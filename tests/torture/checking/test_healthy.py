"""What is healthy passes all checkers."""

from __future__ import annotations

from dataclasses import replace

from fencing.torture.checking import CHECKERS, check
from tests.support.histories import healthy


def test_a_healthy_history_passes_all():
    assert check(healthy().history()) == []


def test_a_healthy_history_passes_in_whatever_order_its_writes_and_admissions_are_given():
    history = healthy().history()
    assert (
        check(replace(history, writes=history.writes[::-1], admissions=history.admissions[::-1]))
        == []
    )


def test_names_are_unique():
    assert len({each.name for each in CHECKERS}) == len(CHECKERS)

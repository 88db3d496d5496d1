"""What is healthy passes all checkers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

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


def test_the_documentation_lists_all_checkers_in_their_order():
    page = Path(__file__).parents[3].joinpath("docs", "reliability.md").read_text("utf-8")
    section = page.partition("## What is checked")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]+ \|$", section, re.MULTILINE)
    assert rows[0] == ("checker", "of")
    invariants = {"converse": "the converse"}
    assert rows[1:] == [
        (each.name, invariants.get(each.invariant, each.invariant)) for each in CHECKERS
    ]

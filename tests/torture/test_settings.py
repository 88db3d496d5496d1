"""What a run is told is checked, and reaches its processes whole."""

from __future__ import annotations

import math
from typing import Any

import pytest

from fencing.torture.settings import Order, Plan, Settings


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("seconds", 0.5, "seconds must be from 1 to 86400, not 0.5"),
        ("seconds", math.nan, "seconds must be from 1 to 86400, not nan"),
        ("seconds", math.inf, "not inf"),
        ("workers", 0, "workers must be from 1 to 32, not 0"),
        ("workers", 33, "not 33"),
        ("registers", 0, "registers must be from 1"),
        ("sets", 0, "sets must be from 1"),
        ("accounts", 1, "accounts must be from 2"),
        ("ttl", 0.01, "ttl must be from 0.05 to 60, not 0.01"),
        ("seed", -1, "seed must be from 0"),
    ],
)
def test_a_setting_out_of_its_range_is_refused(field: str, value: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Settings(**{field: value})


def test_a_run_takes_some_path() -> None:
    with pytest.raises(ValueError, match="no paths at all; there are: core,"):
        Settings(paths=())


@pytest.mark.parametrize("faults", [None, (), ("worker stopped",)])
def test_a_plan_reaches_the_process_as_it_was_made(faults: tuple[str, ...] | None) -> None:
    plan = Plan(
        worker="w1.2",
        seed=3,
        path="orm",
        database_url="postgresql://u@127.0.0.1:1/d",
        locks_url="redis://127.0.0.1:2",
        record="records/w1.2.jsonl",
        settings=Settings(seconds=5, seed=7, faults=faults),
        orders=(Order(point="after the read", action="stop", nth=2),),
        stops=0.25,
        evict_after=0.5,
        script=({"kind": "add", "targets": [1]},),
    )
    assert Plan.from_json(plan.to_json()) == plan

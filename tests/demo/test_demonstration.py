"""The demonstration, as a user runs it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.demo.conftest import Servers


def check_results(output: str) -> None:
    assert output.count("\n") == 1
    results = json.loads(output)
    assert list(results) == ["unguarded", "expired", "guarded"]
    unguarded, expired, guarded = results.values()

    assert (unguarded["expected"], unguarded["actual"]) == (50, 70)
    assert unguarded["lost_updates"] == 1
    assert unguarded["refused"] == 0
    assert unguarded["error"] is None

    assert (expired["expected"], expired["actual"]) == (80, 80)
    assert expired["lost_updates"] == 0
    assert expired["refused"] == 1
    assert expired["error"] == "LeaseExpiredError"
    assert expired["sent"] == 0
    assert expired["sqlstate"] is None

    assert (guarded["expected"], guarded["actual"]) == (80, 80)
    assert guarded["lost_updates"] == 0
    assert guarded["refused"] == 1
    assert guarded["error"] == "StaleFenceError"
    assert guarded["sqlstate"] == "ZF001"
    assert guarded["sent"] == 1
    assert guarded["unfenced_write"] == "ZF002"

    for result in results.values():
        assert result["tokens"]["A"] < result["tokens"]["B"]


def test_json_is_one_object_and_the_status_says_that_all_is_as_promised(servers: Servers):
    status, output, errors = servers.run_demo("--json")
    assert (status, errors) == (0, "")
    check_results(output)


@pytest.mark.slow
@pytest.mark.parametrize("run", range(5))
def test_five_times_in_a_row(servers: Servers, run: int):
    status, output, errors = servers.run_demo("--json", "--ttl", "0.3")
    assert (status, errors) == (0, "")
    check_results(output)


def test_timeline_tells_the_story_in_80_columns_of_plain_text(servers: Servers):
    status, output, errors = servers.run_demo("--ttl", "0.5")
    assert (status, errors) == (0, "")
    assert output.isascii()
    assert output.replace("\n", "").isprintable()  # no escape sequences either
    assert max(map(len, output.splitlines())) == 80
    assert not re.search(" $", output, re.MULTILINE)

    story = [
        "Act 1:",
        "takes the lease, token 1", "reads 100", "is stopped (SIGSTOP)",
        "its lease is over", "takes the lease, token 2", "writes 100 - 20 = 80, commits",
        "is continued (SIGCONT)", "writes 100 - 30 = 70, commits", "LeaseLostError",
        "Expected 50, found 70: B's update is LOST",
        'op.fence_table("accounts", resource="account:{id}")',
        "Act 2:",
        "is stopped (SIGSTOP)", "writes 100 - 20 = 80", "is continued", "LeaseExpiredError",
        "Expected 80, found 80: nothing is lost",
        "Act 3:",
        "checks its deadline", "is stopped (SIGSTOP)", "writes 100 - 20 = 80", "is continued",
        "StaleFenceError", "PostgreSQL to A: stale fence",
        "A plain UPDATE without a lease: unfenced write",
        "Expected 80, found 80: nothing is lost",
        "As promised",
    ]  # fmt: skip
    at = 0
    for words in story:
        assert words in output[at:], f"{words!r} does not follow in\n{output[at:]}"
        at = output.index(words, at) + len(words)

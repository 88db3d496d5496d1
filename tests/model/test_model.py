"""The protocol holds in every interleaving, and each mutant breaks a named invariant.

See ``fencing.pml``, which says what stands for what. SPIN makes a program that goes through all
states; a run counts only if it says that it did.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

MODEL = Path(__file__).with_name("fencing.pml")
DEEPEST = 10_000
"""Longest path that is followed; the deepest has about 200 steps, and a cut would be reported."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        shutil.which("spin") is None or shutil.which("gcc") is None,
        reason="the model checker is not installed: apt-get install spin gcc libc6-dev",
    ),
]


class Verdict(NamedTuple):
    """What a run says.

    Attributes:
        violated: The invariant that was found violated first; empty: none.
        states: How many states there are.
    """

    violated: str
    states: int


def explore(folder: Path, leases: tuple[int, int, int], **macros: int | None) -> Verdict:
    """Go through all states of three acquisitions.

    Args:
        folder: Where to work.
        leases: What each acquires: 1 and 2 are the two resources, 3 is both.
        **macros: What else to define.
    """
    names = {"LEASES_1": leases[0], "LEASES_2": leases[1], "LEASES_3": leases[2]}
    macros = {**names, "WRITES_1": leases[0], **macros}
    flags = [f"-D{name}" + ("" if value is None else f"={value}") for name, value in macros.items()]
    run(folder, "spin", "-a", *flags, str(MODEL))
    run(folder, "gcc", "-O2", "-w", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c")
    said = run(folder, "./pan", f"-m{DEEPEST}", "-w24")
    assert "Search not completed" not in said or "errors: 1" in said, said
    assert "max search depth too small" not in said
    found = re.search(r"errors: (\d+)", said)
    states = re.search(r"(\d+) states, stored", said)
    assert found, said
    assert states, said
    violated = re.search(r"pan:\d+: (?:assertion violated (\w+)|(invalid end state))", said)
    assert (found[1] == "0") == (violated is None), said
    return Verdict("" if violated is None else violated[1] or violated[2], int(states[1]))


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# As the two resources are alike, so are (1, 1, 1) and (2, 2, 2), for instance.
@pytest.mark.parametrize(
    "leases", [(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 2, 3), (1, 3, 3), (3, 3, 3)]
)
def test_no_interleaving_violates_an_invariant(tmp_path: Path, leases) -> None:
    verdict = explore(tmp_path, leases)
    assert verdict.violated == ""
    assert verdict.states > 100_000


def test_nor_while_fences_are_pruned(tmp_path: Path) -> None:
    assert explore(tmp_path, (1, 1, 1), PRUNE=None).violated == ""


def test_nor_with_more_tokens(tmp_path: Path) -> None:
    assert explore(tmp_path, (1, 1, 1), TOKENS=4).violated == ""


@pytest.mark.parametrize("lease", [1, 2])
def test_nor_by_an_update_that_moves_a_row(tmp_path: Path, lease: int) -> None:
    assert explore(tmp_path, (lease, 1, 2), WRITES_1=3).violated == ""


@pytest.mark.parametrize(
    ("mutant", "leases", "more", "violated"),
    [
        ("ANY_TOKEN", (1, 1, 1), {}, "I5_one_holder_a_token"),
        ("EQUAL_TOKEN", (1, 1, 1), {}, "I5_one_holder_a_token"),
        ("NO_FOR_SHARE", (1, 1, 1), {}, "I2_none_after_a_newer_admission"),
        ("NO_COMPARISON", (1, 1, 1), {}, "I2_none_after_a_newer_admission"),
        ("FIRST_ONLY", (1, 1, 1), {"WRITES_1": 3}, "I6_none_without_a_lease"),
        ("LAST_ONLY", (2, 1, 1), {"WRITES_1": 3}, "I6_none_without_a_lease"),
        ("NEW_TOKEN", (1, 1, 1), {}, "I3_no_update_is_lost"),
        ("LATE_ENTRY", (1, 1, 1), {}, "I4_reads_see_what_was_accepted"),
        ("EARLY_FLOOR", (1, 1, 1), {"PRUNE": None}, "I5_one_holder_a_token"),
        ("LOWER_TOKEN", (1, 1, 1), {}, "I1_tokens_never_decrease"),
        ("HELD_MEANWHILE", (3, 3, 3), {}, "invalid end state"),
    ],
)
def test_a_mutant_is_caught_by_what_it_breaks(
    tmp_path: Path, mutant: str, leases, more, violated: str
) -> None:
    assert explore(tmp_path, leases, **{mutant: None}, **more).violated == violated

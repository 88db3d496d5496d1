"""docs/coverage.md says what the tests try, and nothing else."""

from __future__ import annotations

import ast

import pytest

from tests.coverage.attacks import ATTACKS, Attack
from tests.coverage.page import PAGE, render
from tests.coverage.paths import PATHS

ROOT = PAGE.parents[1]


def test_the_page_is_what_the_list_renders():
    assert PAGE.read_text("utf-8") == render(), "run: python -m tests.coverage.page"


def test_every_path_has_a_name_of_its_own():
    names = [(path.group, path.id) for path in PATHS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.what)
def test_the_test_of_every_attack_exists(attack: Attack):
    file, _, name = attack.test.partition("::")
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

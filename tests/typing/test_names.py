"""The public names: one list for readers, type checkers and the interpreter, made on demand."""

from __future__ import annotations

import ast
import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import fencing


def imported(node: ast.AST) -> set[str]:
    return {
        alias.asname or alias.name
        for part in ast.walk(node)
        if isinstance(part, ast.ImportFrom) and (part.module or "").startswith("fencing.")
        for alias in part.names
    }


def test_what_a_type_checker_sees_is_what_there_is() -> None:
    """A name that is missing in one of the lists works for some and fails for others."""
    tree = ast.parse(Path(fencing.__file__).read_text("utf-8"))
    assert imported(tree) == set(fencing.__all__)
    (for_checkers,) = (node for node in tree.body if isinstance(node, ast.If))
    assert imported(for_checkers) == set(fencing._HOMES)


@pytest.mark.parametrize("name", fencing.__all__)
def test_every_name_is_where_its_home_says(name: str) -> None:
    assert getattr(fencing, name).__module__.startswith("fencing.")
    assert fencing._HOMES.get(name, "fencing.errors") in (
        getattr(fencing, name).__module__,
        getattr(fencing, name).__module__.rpartition(".")[0],
    )


def test_dir_and_help_know_them() -> None:
    assert set(fencing.__all__) <= set(dir(fencing))
    assert "class RedisLockService" in pydoc.plain(pydoc.render_doc(fencing))


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Gard'"):
        fencing.Gard  # noqa: B018 - it raises by being read


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_star_import_brings_all_of_them() -> None:
    code = "from fencing import *; import fencing; print(set(fencing.__all__) <= set(globals()))"
    assert python(code) == "True\n"


def test_importing_the_package_imports_neither_sqlalchemy_nor_redis() -> None:
    code = "import sys, fencing; print({'sqlalchemy', 'redis', 'alembic'} & set(sys.modules))"
    assert python(code) == "set()\n"


def test_a_name_is_made_once() -> None:
    code = (
        "import fencing; before = 'fenced_by' in vars(fencing); fencing.fenced_by; "
        "print(before, 'fenced_by' in vars(fencing))"
    )
    assert python(code) == "False True\n"

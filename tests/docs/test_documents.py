"""The documentation is executed: every Python and console block, page by page, in order."""

from __future__ import annotations

import codeop
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
from sqlalchemy import Engine, make_url

import fencing
from fencing import Guard, RedisLockService, RedlockService, postgres
from fencing.postgres import PsycopgGuard
from fencing.schema import names
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

_BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: (?P<rest>\S+))?\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


class Block(NamedTuple):
    language: str
    rest: str
    body: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(m["language"], m["rest"] or "", m["body"], text.count("\n", 0, m.start("body")))
        for m in _BLOCK.finditer(text)
    ]


def runnable(page: Path) -> bool:
    return any(block.language in ("python", "console") for block in blocks(page))


# The README's console blocks are the commands that set everything up, this test included.
CONSOLE_PAGES = [page for page in PAGES if page.name != "README.md"]


@pytest.mark.parametrize(
    "page", [p for p in PAGES if runnable(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_a_page_runs_from_top_to_bottom(
    page, tmp_path, monkeypatch, redis_url, fenced_database, request
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FENCING_REDIS_URL", redis_url)
    monkeypatch.setenv("FENCING_DATABASE_URL", fenced_database)
    if "FENCING_ZOOKEEPER_URL" in page.read_text("utf-8"):
        monkeypatch.setenv("FENCING_ZOOKEEPER_URL", request.getfixturevalue("zookeeper_url"))
    if "FENCING_ETCD_URL" in page.read_text("utf-8"):
        monkeypatch.setenv("FENCING_ETCD_URL", request.getfixturevalue("etcd_url"))
    with bank(fenced_database) as url:
        monkeypatch.setenv("BANK_URL", url)
        run_page(page, tmp_path, monkeypatch)


@contextmanager
def bank(server: str) -> Iterator[str]:
    """Address of the tutorial's database; dropped afterwards."""
    url = make_url(server).set(database="bank")
    yield url.render_as_string(hide_password=False)
    with psycopg.connect(plain_url(server), autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS bank WITH (FORCE)")


def run_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scripts = str(Path(sys.executable).parent)
    monkeypatch.setenv("PATH", scripts + os.pathsep + os.environ["PATH"])
    modules = set(sys.modules)
    namespace: dict[str, object] = {"__name__": "__main__"}
    try:
        for block in blocks(page):
            if block.language == "console" and page in CONSOLE_PAGES:
                run_console(block)
            elif block.language == "python" and block.rest.endswith(".py"):
                target = tmp_path / block.rest
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.body, "utf-8")
            elif block.language == "python":
                # Line numbers of a traceback are those of the page.
                source = "\n" * block.line + block.body
                exec(compile(source, str(page), "exec", dont_inherit=True), namespace)
    finally:
        close_all(namespace.values())
        for name in set(sys.modules) - modules:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
                del sys.modules[name]


def close_all(values: Iterable[object]) -> None:
    """Close what a page leaves open, which would be found in another test."""
    for value in values:
        if isinstance(value, Guard | PsycopgGuard | RedisLockService | RedlockService):
            value.close()
        elif isinstance(value, Engine):
            value.dispose()


def run_console(block: Block) -> None:
    for line in block.body.splitlines():
        if line.startswith("$ "):
            done = subprocess.run(
                ["bash", "-c", line[2:]], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


# What is to be pasted into a terminal; the others say that they are files.
PASTED = [ROOT / "README.md", ROOT / "docs/tutorial.md"]


@pytest.mark.parametrize("page", PASTED, ids=lambda p: p.name)
def test_it_can_be_pasted_line_by_line(page):
    """Python's prompt ends a block at an empty line, and at nothing else."""
    for block in blocks(page):
        if block.language != "python" or block.rest:
            continue
        waiting: list[str] = []
        # The empty line at the end is what one types after pasting.
        for number, line in enumerate([*block.body.splitlines(), ""], block.line + 1):
            waiting.append(line)
            try:
                if codeop.compile_command("\n".join(waiting), symbol="single"):
                    waiting = []
            except SyntaxError as error:
                raise AssertionError(f"{page.name}:{number}: {error}") from error
        assert not "".join(waiting).strip(), f"{page.name}: a block is not finished"


def test_every_link_between_pages_leads_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]*)(?:#[^)]*)?\)", page.read_text("utf-8")):
            assert not target or (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_reference_names_everything_public():
    reference = (ROOT / "docs/reference.md").read_text("utf-8")
    names_of_postgres = [f"postgres.{name}(" for name in postgres.__all__]
    missing = [n for n in [*fencing.__all__, *names_of_postgres] if n not in reference]
    assert missing == []


def test_the_reference_names_every_sqlstate():
    reference = (ROOT / "docs/reference.md").read_text("utf-8")
    states = [v for v in vars(names).values() if isinstance(v, str) and re.fullmatch("ZF...", v)]
    assert states
    assert [state for state in states if state not in reference] == []

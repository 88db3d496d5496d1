"""Ctrl-C ends every command with the status of an interrupt, and without a word."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner

from fencing.cli.main import COMMANDS, main

INTERRUPTED = 128 + signal.SIGINT

# Interrupts itself in the midst of an import that the command makes.
IMPORTING = """
import signal
import sys
from fencing.cli.main import main

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
main(sys.argv[2:])
"""


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        *((entry.module, (name,)) for name, entry in COMMANDS.items()),
        ("fencing.demo.show", ("demo",)),
        ("sqlalchemy", ("demo",)),
        ("fencing.administration", ("verify", "postgresql://h/d")),
        ("fencing.migration", ("install", "postgresql://h/d")),
        ("redis", ("locks", "redis://h")),
    ],
)
def test_while_a_command_is_being_imported(module: str, arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTING, module, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")


AT_WORK = [
    ("fencing.administration.verify_url", ("verify", "postgresql://h/d")),
    ("fencing.administration.raise_fence", ("raise", "postgresql://h/d", "r", "1")),
    ("fencing.administration.prunable", ("prune", "u", "--older-than", "30d", "--dry-run")),
    ("fencing.connecting.connect", ("locks", "redis://h")),
    ("fencing.demo.show.perform", ("demo", "--json")),
    ("fencing.migration.environment.bring_forward", ("install", "postgresql://h/d")),
    ("fencing.schema.ddl.install", ("sql",)),
    ("fencing.cli.dev.start", ("dev",)),
    ("fencing.torture.installed.check_installed", ("torture",)),
]


@pytest.mark.parametrize(("function", "arguments"), AT_WORK)
def test_while_a_command_is_at_work(
    monkeypatch: pytest.MonkeyPatch, function: str, arguments: tuple[str, ...]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(function, interrupted)
    result = CliRunner().invoke(main, arguments)
    assert (result.exit_code, result.output) == (INTERRUPTED, "")


def test_all_commands_were_tried() -> None:
    assert {arguments[0] for _, arguments in AT_WORK} == set(COMMANDS)

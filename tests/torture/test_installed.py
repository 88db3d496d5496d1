"""What is not installed is left out, or said to be missing before anything is started."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from fencing.cli.main import main
from fencing.embedded.places import MissingProgramError
from fencing.torture import installed, ways
from fencing.torture.paths import PATHS
from fencing.torture.report import Report
from fencing.torture.settings import Settings
from tests.support.histories import World

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Lack = Callable[[str], None]


@pytest.fixture
def lack(monkeypatch: pytest.MonkeyPatch) -> Lack:
    """Has a package look as if it were not installed."""

    def lack(package: str) -> None:
        def find_spec(name: str) -> object:
            return None if name == package else importlib.util.find_spec(name)

        monkeypatch.setattr(installed, "find_spec", find_spec)

    return lack


def test_all_paths_are_taken_whose_drivers_are_there(lack: Lack) -> None:
    assert installed.installed_paths() == PATHS
    lack("asyncpg")
    assert installed.installed_paths() == tuple(path for path in PATHS if path != "asyncpg")


def test_what_a_run_goes_without_is_told(
    lack: Lack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise MissingProgramError("it", "some-package")

    lack("asyncpg")
    monkeypatch.setattr(ways, "PgBouncer", missing)
    monkeypatch.setattr(ways, "FalseClock", missing)
    settings = Settings(paths=installed.installed_paths())
    assert installed.missing_paths(settings) == (
        "path 'asyncpg' (pip install \"fencing[asyncpg]\")",
    )
    assert installed.missing_paths(Settings(paths=("core",))) == ()
    with ways.Ways(settings, "postgresql://127.0.0.1:1/nothing", tmp_path) as taken:
        assert [what.partition(" (")[0] for what in taken.left_out] == ["PgBouncer", "false clocks"]
        assert all("apt-get install some-package" in what for what in taken.left_out)
    history = World().history()
    report = Report.of(history, settings, left_out=("false clocks (no compiler)",))
    assert "  left out      false clocks (no compiler)" in report.lines()
    assert report.to_dict()["left_out"] == ("false clocks (no compiler)",)


@pytest.mark.parametrize(
    ("package", "arguments", "said"),
    [
        (
            "asyncpg",
            ["--path", "asyncpg"],
            'needs asyncpg, which is not installed: pip install "fencing[asyncpg]"',
        ),
        ("httpx", ["--service", "etcd"], "lock service 'etcd' needs httpx, which is not installed"),
        ("kazoo", ["--service", "redis", "--service", "zookeeper"], "needs kazoo, which is not"),
    ],
)
def test_what_is_missing_is_said(package: str, arguments: list[str], said: str, lack: Lack) -> None:
    lack(package)
    result = CliRunner().invoke(main, ["torture", "--seconds", "5", *arguments])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""

"""``fencing torture``: what it prints, how it ends, and what bad input is told."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from click.testing import CliRunner, Result

from fencing.cli.main import main
from fencing.embedded.asking import until
from fencing.torture.recording import read_records
from fencing.torture.run import _on_interrupt
from fencing.torture.services import SERVICES

if TYPE_CHECKING:
    from collections.abc import Iterator

WRITING = {"add", "append", "transfer"}
"""Kinds of transactions."""


@pytest.fixture
def folder() -> Iterator[Path]:
    """For the temporary files of one process, which are not to be taken for those of another test.

    Not pytest's, whose path may be too long for a socket in it.
    """
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)  # PostgreSQL may run as another user
        yield Path(name)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["torture", *arguments])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--seconds", "0"], "seconds must be from"),
        (["--seconds", "nan"], "seconds must be from"),
        (["--seconds", "1.5", "--service", "redis", "--service", "postgres"], "seconds must be"),
        (["--seconds", "soon"], "--seconds"),
        (["--between-faults", "0"], "between_faults must be from 0.05 to 3600, not 0"),
        (["--workers", "0"], "workers must be from"),
        (["--ttl", "0"], "ttl must be from"),
        (["--seed", "-1"], "--seed"),
        (["--service", "memcached"], "no lock service 'memcached'; there are: "),
        (["--path", "sea"], "no path 'sea'; there are: core, "),
        (["--fault", "earthquake"], "no fault 'earthquake' with redis; there are: "),
    ],
)
def test_bad_input_is_a_usage_error(arguments: list[str], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_without_faults_nothing_is_refused_that_had_a_lease(tmp_path: Path) -> None:
    result = invoke(
        "--seconds", "10", "--seed", "5", "--ttl", "30", "--workers", "3", "--fault", "none",
        "--json", "--keep", str(tmp_path / "kept"),
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (told["seed"], told["as_expected"]) == (5, True)
    (run,) = told["runs"]
    assert run["lock_service"] == "redis"
    assert run["violations"] == []
    assert run["faults"] == {}
    assert run["refusals"] == {}
    assert run["transactions"]["committed"] > 0
    assert "committed" not in run["attempts"]
    assert run["not_granted"] == {}
    kept = json.loads((tmp_path / "kept" / "redis-5.json").read_text())
    assert len(kept["writes"]) == run["writes"]


def test_what_was_violated_is_told_and_ends_with_status_1() -> None:
    # What is expected without a guard is that updates are lost; one worker alone loses none.
    result = invoke("--seconds", "5", "--workers", "1", "--fault", "none", "--without-guard")
    assert result.exit_code == 1
    assert re.search(
        r"Not as promised; repeat it with: .*torture --seed \d+ --seconds 5\.0 --fault none "
        r"--workers 1 --without-guard\n",
        result.stderr,
    )


def test_a_folder_that_cannot_be_written_to_is_told_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("fencing.torture.stage.Stage")
    result = invoke("--seconds", "5", "--keep", "/dev/null/here")
    assert result.exit_code == 2
    assert "--keep: no files can be written to /dev/null/here" in result.stderr


def test_what_cannot_be_kept_is_told_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def save(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fencing.torture.keeping.save", save)
    result = invoke("--seconds", "2", "--workers", "1", "--fault", "none", "--keep", str(tmp_path))
    assert result.exit_code == 2
    assert "violations    0" in result.stdout
    assert f"could not be kept in {tmp_path}: [Errno 28] No space left" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_servers_start_leaves_nothing(number: signal.Signals, folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fencing.cli.main", "torture", "--seconds", "3600"],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)},
    ) as process:
        try:
            until(lambda: any(folder.glob("fencing-torture-*")), "it began")
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert psutil.wait_procs(children, timeout=60)[1] == []
    until(lambda: not any(folder.iterdir()), "its folders were removed")


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    told = []
    with _on_interrupt(lambda: told.append("interrupted")):
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert told == ["interrupted"]
        monkeypatch.setattr("fencing.torture.run._SAME_SIGNAL", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert told == ["interrupted"]


def test_it_knows_every_lock_service() -> None:
    result = invoke("--service", "none at all")
    for name in SERVICES:
        assert name in result.stderr


def test_an_interrupt_ends_it_early_and_it_checks_what_it_has(tmp_path: Path, folder: Path) -> None:
    with subprocess.Popen(
        [
            sys.executable, "-m", "fencing.cli.main", "torture", "--seconds", "3600", "--json",
            "--fault", "none", "--ttl", "30", "--workers", "2", "--keep", tmp_path,
            "--service", "redis", "--service", "postgres",
        ],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(folder)},
    ) as process:  # fmt: skip
        try:
            until(lambda: _workers_have_written(folder), "anything was committed")
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(signal.SIGINT)
            told, _ = process.communicate(timeout=120)
        finally:
            process.kill()  # it would run for an hour
    assert process.returncode == 130
    (run,) = json.loads(told)["runs"]  # the second was not begun
    assert run["interrupted"] is True
    assert run["violations"] == []
    assert run["writes"] > 0
    assert psutil.wait_procs(children, timeout=60)[1] == []
    until(lambda: not any(folder.iterdir()), "its folders were removed")


def _workers_have_written(folder: Path) -> bool:
    """Whether a transaction was committed, other than one that only reads or admits."""
    told = [
        record for path in folder.glob("fencing-torture-*/*.jsonl") for record in read_records(path)
    ]
    writing = {each.get("transaction") for each in told if each.get("kind") in WRITING}
    return any(
        each["event"] == "told"
        and each["outcome"] == "committed"
        and each["transaction"] in writing
        for each in told
    )

"""What a process wrote down is there although it was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

from fencing.clock import now
from fencing.torture.recording import Record, read_records

if TYPE_CHECKING:
    from pathlib import Path

WRITES_UNTIL_KILLED = """
import os, signal, sys
from fencing.torture.recording import Record
record = Record(sys.argv[1])
for number in range(100):
    record("counted", number=number)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_loses_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    ended = subprocess.run(
        [sys.executable, "-c", WRITES_UNTIL_KILLED, path],
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ended.returncode == -signal.SIGKILL
    assert [record["number"] for record in read_records(path)] == list(range(100))


def test_half_a_line_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "w.jsonl"
    record = Record(path)
    record("whole")
    record.close()
    with path.open("ab") as file:
        file.write(b'{"event": "ha')
    assert [record["event"] for record in read_records(path)] == ["whole"]


def test_moments_are_of_the_clock_that_leases_go_by(tmp_path: Path) -> None:
    before = now()
    record = Record(tmp_path / "w.jsonl")
    said = record("something", fact=1)
    record.close()
    (line,) = read_records(tmp_path / "w.jsonl")
    assert before <= said == line["at"] <= now()
    assert line["fact"] == 1

"""Each schedule is legal; each mutant is caught in its schedule, by the checker that is named.

`make mutants` runs this, and prints who has caught whom.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from fencing.torture.checking import CHECKERS, check
from fencing.torture.loading import load
from fencing.torture.run import run
from fencing.torture.settings import Settings
from tests.torture.mutants.catalogue import MUTANTS, Mutant
from tests.torture.mutants.schedules import SCHEDULES
from tests.torture.mutants.table import Caught, rows_of
from tests.torture.mutants.texts import replaced

if TYPE_CHECKING:
    from sqlalchemy import Engine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_legal(name, open_play):
    with open_play(name) as play:
        SCHEDULES[name].direct(play)
        history = play.history()
    assert check(history) == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant, open_play, note_caught):
    def change(owner: Engine) -> None:
        with owner.begin() as connection:
            for each in mutant.changes:
                each(connection)

    began = time.monotonic()
    twists = [mutant.twist] if mutant.twist else []
    with open_play(mutant.schedule, twists, change, guarded=mutant.guarded) as play:
        SCHEDULES[mutant.schedule].direct(play)
        history = play.history()
    checkers = {violation.checker for violation in check(history)}
    assert mutant.checker in checkers
    note_caught(Caught(mutant.name, mutant.checker, _how(mutant, time.monotonic() - began)))


def _how(mutant: Mutant, seconds: float) -> str:
    return f"schedule {mutant.schedule} ({seconds:.1f} s)"


class _SeenError(Exception):
    """An update is lost."""


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.timeout(240)  # the work, and a minute at each end of it on a busy machine
def test_without_a_guard_every_run_loses_updates(seed, note_caught, open_stage):
    after = 0.0

    def look(seconds: float) -> None:
        nonlocal after
        if seconds > after + 0.5:
            after = seconds
            with stage.owner.connect() as connection:
                if connection.execute(text(_LOST)).scalar():
                    raise _SeenError

    faults = ("worker stopped", "worker killed")  # the database serves, for looks
    settings = Settings(seconds=60, seed=seed, ttl=0.3, guarded=False, faults=faults)
    with open_stage(settings) as stage:
        with suppress(_SeenError):
            run(stage, look)
        for worker in stage.workers:
            worker.close()
        history = load(
            stage.owner, stage.records.glob("*.jsonl"), (), guarded=False,
            lock_service=settings.lock_service, keeps_order=False,
        )  # fmt: skip
    assert "no lost update" in {violation.checker for violation in check(history)}
    how = f"random, seed {seed}, after {after:.0f} s"
    note_caught(Caught("there is no guard", "no lost update", how))


_LOST = "SELECT EXISTS (SELECT FROM torture.write WHERE change = 'update' AND new <> old + 1)"


def test_the_table_in_the_documents_is_of_these_mutants():
    lines = Path("docs/reliability.md").read_text("utf-8").splitlines()
    wanted = rows_of(
        Caught(mutant.name, mutant.checker, SCHEDULES[mutant.schedule].told) for mutant in MUTANTS
    )
    first = lines.index(wanted[0])
    assert lines[first : first + len(wanted)] == wanted
    assert not lines[first + len(wanted)]


def test_a_mutant_names_a_checker_that_there_is():
    assert {mutant.checker for mutant in MUTANTS} <= {checker.name for checker in CHECKERS}


def test_a_mutant_of_a_text_that_has_changed_is_an_error():
    assert replaced("a > b", (">", ">=")) == "a >= b"
    with pytest.raises(ValueError, match="the text to change is not there: '<'"):
        replaced("a > b", ("<", "<="))

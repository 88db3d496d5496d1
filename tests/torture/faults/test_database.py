"""What is done to PostgreSQL and its processes is done to them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from fencing.torture.faults import MissedError, database
from tests.torture.faults.conftest import perform, value

STARTED = "SELECT pg_postmaster_start_time()"


def is_ended(connection):
    try:
        connection.execute(text("SELECT 1"))
    except OperationalError:
        return True
    return False


@pytest.fixture
def unlogged(stage):
    """A table that only a crash empties."""
    with stage.owner.begin() as connection:
        connection.execute(text("CREATE UNLOGGED TABLE public.unlogged AS SELECT 1 AS n"))
    # What an unlogged table holds at a checkpoint in order survives; so it is there from now on.
    yield lambda: value(stage.owner, "SELECT count(*) FROM public.unlogged")
    with stage.owner.begin() as connection:
        connection.execute(text("DROP TABLE public.unlogged"))


def test_a_killed_backend_takes_all_sessions_with_it(stage, chance, connect, unlogged):
    worker = connect()
    with stage.owner.connect() as owner:
        owner.execute(text("SELECT 1"))
        perform(database.kill_a_backend(stage, chance))
        assert is_ended(worker)
        assert is_ended(owner)
        owner.invalidate()
    assert unlogged() == 0


def test_who_kills_a_backend_and_finds_none_has_missed(stage, chance):
    before = value(stage.owner, STARTED)
    with pytest.raises(MissedError):
        perform(database.kill_a_backend(stage, chance))
    assert value(stage.owner, STARTED) == before


def test_only_sessions_of_workers_are_ended(stage, chance, connect):
    workers = [connect() for _ in range(4)]
    with stage.owner.connect() as owner:
        owner.execute(text("SELECT 1"))
        perform(database.end_sessions(stage, chance))
        assert 1 <= sum(map(is_ended, workers)) <= 3
        assert not is_ended(owner)


def test_a_crash_is_recovered_from(stage, chance, connect, unlogged):
    worker, before = connect(), value(stage.owner, STARTED)
    perform(database.crash(stage, chance))
    assert is_ended(worker)
    assert value(stage.owner, STARTED) > before
    assert unlogged() == 0


def test_a_restart_in_order_loses_nothing(stage, chance, connect, unlogged):
    worker, before = connect(), value(stage.owner, STARTED)
    perform(database.restart(stage, chance))
    assert is_ended(worker)
    assert value(stage.owner, STARTED) > before
    assert unlogged() == 1


@pytest.mark.parametrize("fault", [database.crash, database.restart])
@pytest.mark.parametrize("steps", [1, 50])
def test_a_fault_that_is_ended_early_leaves_a_database_that_serves(stage, chance, fault, steps):
    striking = fault(stage, chance)
    for _ in range(steps):
        next(striking, None)
    striking.close()
    assert value(stage.owner, "SELECT 1") == 1


@pytest.mark.skipif(not database.can_suspend(), reason="tells nobody a process's children")
def test_all_processes_stop_and_go_on(stage, chance, connect):
    worker = connect()
    pid = worker.scalar(text("SELECT pg_backend_pid()"))
    striking = database.suspend(stage, chance)
    next(striking)
    try:
        # Listed now: before, there may have been some that were about to end.
        children = database.children_of(stage.postgres.pid)
        assert pid in children
        processes = [stage.postgres.pid, *children]
        await_states(processes, stopped=True)
        assert {state_of(stage.postgres.pid), state_of(pid)} == {"T"}
    finally:
        striking.close()
    await_states(processes, stopped=False)
    assert not is_ended(worker)


def await_states(processes, *, stopped):
    """Until all are, or the test's time is up; whoever has ended is neither."""
    for pid in processes:
        while (state_of(pid) == "T") != stopped:
            if state_of(pid) in {"Z", "ended"}:
                break
            time.sleep(0.001)


def state_of(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return "ended"
    return state.rpartition(")")[2].split()[0]

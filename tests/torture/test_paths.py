"""Every way to the database does the work, and what it was told is what the database kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencing.torture import points
from fencing.torture.checking import check
from fencing.torture.history import Outcome
from fencing.torture.loading import load
from fencing.torture.paths import ASYNC_PATHS, PATHS
from fencing.torture.report import Report
from fencing.torture.services import lock_servers
from fencing.torture.settings import Order, Settings
from fencing.torture.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded import PostgresProcess
    from fencing.torture.history import History

TIMEOUT = 120.0
SCRIPT: tuple[dict[str, Any], ...] = (
    {
        "kind": "add", "targets": [1], "transactions": 3, "isolation": "READ COMMITTED",
        "readmitted": True,
    },
    {"kind": "append", "targets": [1], "transactions": 25, "isolation": "REPEATABLE READ"},
    {"kind": "transfer", "targets": [2, 1], "transactions": 2, "isolation": "SERIALIZABLE"},
    {"kind": "look", "targets": [1], "keepalive": True},
    {"kind": "stream", "targets": [1]},
    {"kind": "add", "targets": [2], "undone": 1.0},
    {"kind": "together", "targets": [2], "transactions": 2},
    {"kind": "unfenced", "targets": [1]},
    {"kind": "leaked", "targets": [1]},
)  # fmt: skip
for unit in SCRIPT:
    unit["ttl"] = 60.0


@pytest.fixture
def stage(torture_postgres: PostgresProcess) -> Iterator[Stage]:
    settings = Settings(faults=(), ttl=60.0)
    with Stage(settings, lock_servers("redis"), postgres=torture_postgres) as stage:
        yield stage


def history_of(stage: Stage) -> History:
    return load(
        stage.owner,
        sorted(stage.records.glob("*.jsonl")),
        (),
        guarded=True,
        lock_service="redis",
        keeps_order=True,
    )


@pytest.mark.parametrize("path", PATHS)
def test_every_kind_of_work_by_every_path(stage: Stage, path: str) -> None:
    stage.start_worker(0, stops=False, deaths=False, path=path, script=SCRIPT)
    (worker,) = stage.workers
    assert worker.await_end(TIMEOUT) == 0, worker.last_words()

    history = history_of(stage)
    assert check(history) == []
    told = [(one.kind, one.outcome, one.error) for one in history.transactions]
    refused = (Outcome.REFUSED, "UnfencedWriteError")
    assert told == [
        ("add", Outcome.COMMITTED, None),
        *[("readmission", Outcome.COMMITTED, None), ("add", Outcome.COMMITTED, None)] * 2,
        *[("append", Outcome.COMMITTED, None)] * 25,
        *[("transfer", Outcome.COMMITTED, None)] * 2,
        ("look", Outcome.COMMITTED, None),
        ("stream", Outcome.COMMITTED, None),
        ("add", Outcome.ROLLED_BACK, "UndoneError"),
        *[("add", Outcome.COMMITTED, None)] * 4,
        ("unfenced", *refused),
        ("leaked", *refused),
    ]
    report = Report.of(history, stage.settings)
    assert report.transactions == {"committed": 36, "rolled back": 1}
    assert report.readmissions == {"committed": 2}
    assert report.attempts == {"refused": 2}
    assert report.refusals == {}
    assert {one.path for one in history.transactions} == {path}
    # Three adds, 25 elements of which 5 were deleted, two transfers over two accounts, and two adds
    # in each of two sessions.
    assert len(history.writes) == 3 + 25 + 5 + 4 + 4
    assert history.final.rows["register:2/0"] == history.final.rows["register:2/1"] == 2
    assert history.final.rows["set:1"] == 25
    assert sorted(history.final.elements["set:1"]) == list(range(6, 26))
    assert history.final.rows["account:1"] == history.final.rows["account:2"] == 2
    assert len(history.admissions) == 9  # of all units but one, and one is on two resources
    assert [one.isolation for one in history.transactions[29:32]] == [
        "REPEATABLE READ", "SERIALIZABLE", "SERIALIZABLE",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [path for path in PATHS if path != "asyncpg"])
def test_at_commit_it_stops_when_commit_was_sent(stage: Stage, path: str) -> None:
    order = Order(point=points.COMMITTING, action="stop")
    script = ({"kind": "add", "targets": [1], "ttl": 60.0},)
    stage.start_worker(0, stops=False, deaths=False, path=path, script=script, orders=(order,))
    (worker,) = stage.workers
    worker.await_stop(TIMEOUT)
    # The server has, or will have, committed without it.
    with stage.owner.connect() as connection:
        # Its row lock is free only when the transaction is over.
        connection.exec_driver_sql("SELECT 1 FROM torture.register WHERE id = 1 FOR SHARE")
        committed = connection.exec_driver_sql(
            "SELECT sum(value) FROM torture.register WHERE id = 1"
        )
        assert committed.scalar() == 1
    worker.resume()
    assert worker.await_end(TIMEOUT) == 0, worker.last_words()
    (transaction,) = history_of(stage).transactions
    assert transaction.outcome is Outcome.COMMITTED


@pytest.mark.parametrize("point", points.POINTS)
@pytest.mark.parametrize("path", ["orm", "async"])
def test_it_stops_at_each_point_and_goes_on(stage: Stage, path: str, point: str) -> None:
    if point == points.MID_RESULT and path in ASYNC_PATHS:
        pytest.skip("a path of asyncio reads all at once")
    script = (
        {"kind": "stream" if point == points.MID_RESULT else "add", "targets": [1], "ttl": 60.0},
    )
    order = Order(point=point, action="stop")
    stage.start_worker(0, stops=False, deaths=False, path=path, script=script, orders=(order,))
    (worker,) = stage.workers
    worker.await_stop(TIMEOUT)
    worker.resume()
    assert worker.await_end(TIMEOUT) == 0, worker.last_words()
    assert [one.outcome for one in history_of(stage).transactions] == [Outcome.COMMITTED]


def test_it_dies_where_it_was_told_to(stage: Stage) -> None:
    order = Order(point=points.WRITTEN, action="die", nth=2)
    script = ({"kind": "add", "targets": [1], "transactions": 3, "ttl": 60.0},)
    stage.start_worker(0, stops=False, deaths=False, path="core", script=script, orders=(order,))
    (worker,) = stage.workers
    assert worker.await_end(TIMEOUT) == -9
    history = history_of(stage)
    assert [one.outcome for one in history.transactions] == [Outcome.COMMITTED, Outcome.CUT_OFF]
    assert len(history.writes) == 1
    assert check(history) == []

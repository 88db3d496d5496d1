"""In observe mode every write passes, each that would be refused is told of, and nobody waits."""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest

from fencing.schema import ddl
from tests.coverage.model import NOTHING, STALE, UNFENCED, WRITES, Ids, Path, Writer
from tests.coverage.paths import PATHS, THOROUGHLY
from tests.schema.sql import run
from tests.support.bank import BOB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.coverage.conftest import Stage, Tables

# What ends the writer's transaction cannot be looked at before it does.
OBSERVED = [path for path in PATHS if not path.ends_transaction]


def each(paths: list[Path]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("path", paths, ids=lambda path: path.id)


every_path = each(OBSERVED)
that_can_be_overtaken = each(
    [path for path in OBSERVED if path.overtaken == STALE and path.scenario in THOROUGHLY]
)
that_can_be_covered = each(
    [path for path in OBSERVED if path.right == WRITES and path.scenario in THOROUGHLY]
)

LOCKS = """
SELECT locktype, mode FROM pg_locks WHERE pid = pg_backend_pid() AND granted AND (
    locktype IN ('advisory', 'tuple')
    OR (relation = CAST('fencing.fence' AS regclass) AND mode <> 'AccessShareLock')
    OR (relation = CAST('fencing.maintenance' AS regclass) AND mode <> 'AccessShareLock')
    OR (relation = CAST('fencing.floor' AS regclass) AND mode <> 'AccessShareLock'))
"""


class Notice(NamedTuple):
    sqlstate: str
    resource: str | None
    token: int | None
    current_token: int | None
    table: str
    severity: str
    more: int


@pytest.fixture
def tables(stage: Stage, path: Path) -> Tables:
    """The tables of this path, only observed."""
    if stage.version < path.since:
        pytest.skip(f"needs PostgreSQL {path.since}")
    return stage.tables(path.scenario, "observe")


@contextmanager
def listening(connection: psycopg.Connection) -> Iterator[list[Notice]]:
    """What the server says of guarded writes in this block."""
    heard: list[Notice] = []

    def hear(diag: psycopg.errors.Diagnostic) -> None:
        if (diag.sqlstate or "").startswith("ZF"):
            detail = json.loads(diag.message_detail or "")
            heard.append(
                Notice(
                    diag.sqlstate or "",
                    detail["resource"],
                    detail.get("token"),
                    detail.get("current_token"),
                    detail["table"],
                    diag.severity_nonlocalized or "",
                    detail.get("more", 0),
                )
            )

    connection.add_notice_handler(hear)
    try:
        yield heard
    finally:
        connection.remove_notice_handler(hear)


def observe(writer: Writer, tables: Tables, path: Path, ids: Ids) -> list[Notice]:
    """Write and look at it before it is undone; returns what was reported."""
    before = tables.state(writer.connection)
    with listening(writer.connection) as heard:
        path.run(writer, ids)
        writer.connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    swallows = path.right == WRITES and path.none == NOTHING
    wrote = path.right != NOTHING or swallows
    assert (tables.state(writer.connection) != before) == wrote
    for notice in heard:
        assert notice.severity == "NOTICE"
    return heard


class TestEveryPath:
    @every_path
    def test_an_unfenced_write_passes_and_is_told_of_without_a_lock(
        self, path: Path, tables: Tables, writer: Writer
    ) -> None:
        ids = tables.ids(path, NOTHING)
        tables.enter(writer.connection)
        heard = observe(writer, tables, path, ids)
        swallowed = path.none == NOTHING and path.right == WRITES  # an error, which is none here
        expected = set(path.resources(ids)) if swallowed else path.reported(ids)
        assert {notice.resource for notice in heard} == expected
        assert {notice.sqlstate for notice in heard} <= {UNFENCED}
        assert writer.connection.execute(LOCKS.encode()).fetchall() == []

    @that_can_be_overtaken
    def test_a_stale_write_passes_and_is_told_of_though_everybody_who_could_be_waited_for_waits(
        self, path: Path, stage: Stage, tables: Tables, writer: Writer
    ) -> None:
        ids = tables.ids(path, NOTHING)
        resources = path.resources(ids)
        claim = stage.claim(resources)
        tables.enter(writer.connection)
        writer.connection.execute("SELECT fencing.enter(%s, NULL)", [claim])
        stage.overtake(resources)
        writer.connection.execute("SET LOCAL lock_timeout = 1")
        with psycopg.connect(stage.plain_url) as other:
            # The fences, and an admission that is not committed.
            other.execute("SELECT FROM fencing.fence FOR UPDATE")
            other.execute("LOCK TABLE fencing.fence IN EXCLUSIVE MODE")
            other.execute("SELECT fencing.admit('somebody', 1, %s, 'test', 0)", [BOB])
            heard = observe(writer, tables, path, ids)
            other.rollback()
        stale = {notice for notice in heard if notice.sqlstate == STALE}
        assert {notice.resource for notice in stale} == set(resources)
        for notice in stale:
            assert (notice.current_token or 0) == (notice.token or 0) + 1
        assert {n.resource for n in heard} - set(resources) <= {None}

    @that_can_be_covered
    def test_a_covered_write_is_not_told_of(
        self, path: Path, stage: Stage, tables: Tables, writer: Writer
    ) -> None:
        ids = tables.ids(path, NOTHING)
        claim = stage.claim(path.resources(ids))
        tables.enter(writer.connection)
        writer.connection.execute("SELECT fencing.enter(%s, NULL)", [claim])
        assert observe(writer, tables, path, ids) == []


class TestMany:
    """A statement over many rows does not flood its client."""

    @pytest.fixture(params=["ordinary", "partitioned"])
    def many(self, admin: psycopg.Connection, request) -> psycopg.Connection:
        """The owner's connection; an observed table of 1000 rows, each of its own resource."""
        by = " PARTITION BY RANGE (id)" if request.param == "partitioned" else ""
        admin.execute(f"CREATE TABLE many (id bigint, amount int DEFAULT 0){by}".encode())
        if by:
            admin.execute("CREATE TABLE low PARTITION OF many FOR VALUES FROM (0) TO (300)")
            admin.execute("CREATE TABLE high PARTITION OF many FOR VALUES FROM (300) TO (2000)")
        admin.execute("INSERT INTO many SELECT n FROM generate_series(1, 1000) AS n")
        run(admin, ddl.fence_table("many", "row:{id}", mode="observe"))
        return admin

    @pytest.mark.parametrize("rows", [1, 99, 100, 101])
    def test_a_hundred_are_told_of_one_by_one(self, many, rows):
        with listening(many) as heard:
            many.execute("UPDATE many SET amount = 1 WHERE id <= %s", [rows])
        assert len(heard) == min(rows, 100)
        assert len({notice.resource for notice in heard}) == len(heard)

    def test_of_a_thousand_a_hundred_are_told_of_and_the_others_are_counted(self, many):
        with listening(many) as heard:
            many.execute("UPDATE many SET amount = 1")
        each = many.execute("SELECT relkind = 'p' FROM pg_class WHERE relname = 'many'").fetchone()
        told = len(heard) + sum(notice.more for notice in heard)
        if each == (False,):
            assert (len(heard), told) == (100, 1000)
        else:  # nothing is called at the end of a statement there
            assert (len(heard), told) == (103, 800)

    def test_rows_that_alternate_between_partitions_are_counted_together(self, many):
        with listening(many) as heard:
            many.execute(
                "INSERT INTO many SELECT 2 + (n % 2) * 500 + n FROM generate_series(1, 1000) AS n"
            )
        assert len(heard) <= 103

    def test_the_next_statement_is_told_of_anew(self, many):
        for transaction in (many.transaction(), nullcontext()):
            with transaction, listening(many) as heard:
                many.execute("UPDATE many SET amount = 1")
                first = len(heard)
                many.execute("UPDATE many SET amount = 1")
            assert len(heard) == 2 * first

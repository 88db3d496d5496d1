"""Every way to write, in every situation: docs/coverage.md lists what is tried here."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import IsolationLevel
from sqlalchemy.exc import DBAPIError

from tests.coverage.model import (
    NOTHING,
    SERIALIZATION,
    STALE,
    UNFENCED,
    WRITES,
    Ids,
    Path,
    Writer,
)
from tests.coverage.paths import PATHS, THOROUGHLY
from tests.coverage.scenarios import CASCADES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.coverage.conftest import Stage, Tables

READ_COMMITTED = IsolationLevel.READ_COMMITTED
OLD_SNAPSHOTS = (IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)


# What is not a write any more where triggers and rules of the user do not fire.
NEED_OTHERS = ("INSTEAD OF", "a rule")


def levels(path: Path) -> list[IsolationLevel]:
    """The isolation levels at which a path is tried."""
    if path.spoils:
        return [READ_COMMITTED]
    if path.scenario in THOROUGHLY:
        return [READ_COMMITTED, *OLD_SNAPSHOTS]
    return [READ_COMMITTED, IsolationLevel.SERIALIZABLE]


def at(paths: list[Path], wanted: tuple[IsolationLevel, ...]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("path", "level"),
        [
            pytest.param(path, level, id=f"{path.id}-{level.name.lower()}")
            for path in paths
            for level in levels(path)
            if level in wanted
        ],
    )


every_path = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.id)
without_triggers_of_others = pytest.mark.parametrize(
    "path",
    [
        path
        for path in PATHS
        if path.none != WRITES
        and path.scenario in THOROUGHLY - {CASCADES}
        and path.group != "Triggers"
        and not any(each in path.name for each in NEED_OTHERS)
    ],
    ids=lambda path: path.id,
)
at_every_level = at(PATHS, (READ_COMMITTED, *OLD_SNAPSHOTS))
checked_at_old_snapshots = at([p for p in PATHS if p.overtaken != WRITES], OLD_SNAPSHOTS)
of_several_resources = pytest.mark.parametrize(
    "path",
    [path for path in PATHS if len(path.needs) > 1 and path.right == WRITES],
    ids=lambda path: path.id,
)


def begin(writer: Writer, tables: Tables, level: IsolationLevel) -> None:
    tables.enter(writer.connection)
    writer.connection.isolation_level = level


def present(writer: Writer, claim: str) -> None:
    writer.claim = claim
    writer.connection.execute("SELECT fencing.enter(%s, NULL)", [claim])


def write(writer: Writer, path: Path, ids: Ids) -> str | None:
    """Do it and commit; returns the SQLSTATE it is refused with."""
    try:
        path.run(writer, ids)
        writer.connection.commit()
    except psycopg.Error as error:
        return error.sqlstate
    except DBAPIError as error:
        return error.orig.sqlstate
    return None


@contextlib.contextmanager
def expecting(outcome: str, writer: Writer, tables: Tables, path: Path, ids: Ids) -> Iterator[None]:
    """Tries the path at the end of the block, and looks at what has become of the tables."""
    before = tables.state()
    yield
    refused = write(writer, path, ids)
    writer.connection.rollback()
    assert writer.connection.execute("SELECT 1").fetchone() == (1,)
    writer.connection.rollback()
    after = tables.state()
    if outcome == WRITES:
        assert refused is None
        assert after != before
    else:
        assert refused == (None if outcome == NOTHING else outcome)
        assert after == before


class TestEveryPath:
    @every_path
    def test_without_a_lease(
        self, path: Path, stage: Stage, tables: Tables, writer: Writer
    ) -> None:
        ids = tables.ids(path, path.none)
        begin(writer, tables, IsolationLevel.READ_COMMITTED)
        with expecting(path.none, writer, tables, path, ids):
            pass
        if path.spoils and path.none == WRITES:
            stage.discard(path.scenario)

    @every_path
    def test_under_a_lease_on_another_resource(
        self, path: Path, stage: Stage, tables: Tables, writer: Writer
    ) -> None:
        ids = tables.ids(path, path.other)
        begin(writer, tables, IsolationLevel.READ_COMMITTED)
        present(writer, stage.claim([f"account:{ids.stranger}"]))
        with expecting(path.other, writer, tables, path, ids):
            pass
        if path.spoils and path.other == WRITES:
            stage.discard(path.scenario)

    @without_triggers_of_others
    def test_without_a_lease_and_as_a_replica(
        self, path: Path, tables: Tables, writer: Writer
    ) -> None:
        """Which switches triggers and rules of the user off, foreign keys as well."""
        ids = tables.ids(path, path.none)
        begin(writer, tables, IsolationLevel.READ_COMMITTED)
        writer.connection.execute("SET session_replication_role = replica")
        writer.connection.commit()
        try:
            with expecting(path.none, writer, tables, path, ids):
                pass
        finally:
            writer.connection.execute("SET session_replication_role = origin")
            writer.connection.commit()

    @of_several_resources
    def test_under_all_leases_but_one(
        self, path: Path, stage: Stage, tables: Tables, writer: Writer
    ) -> None:
        ids = tables.ids(path, UNFENCED)
        resources = path.resources(ids)
        for missing in resources:
            begin(writer, tables, IsolationLevel.READ_COMMITTED)
            present(writer, stage.claim([each for each in resources if each != missing]))
            with expecting(UNFENCED, writer, tables, path, ids):
                pass

    @at_every_level
    def test_under_a_lease_that_was_overtaken_since_it_entered(
        self, path: Path, stage: Stage, tables: Tables, writer: Writer, level: IsolationLevel
    ) -> None:
        """As if entry had not kept the successor waiting."""
        expected = path.overtaken
        if expected == STALE and level in OLD_SNAPSHOTS and not path.ends_transaction:
            expected = SERIALIZATION
        ids = tables.ids(path, expected)
        resources = path.resources(ids)
        begin(writer, tables, level)
        present(writer, stage.claim(resources))
        with expecting(expected, writer, tables, path, ids):
            stage.overtake(resources)
        if path.spoils and expected == WRITES:
            stage.discard(path.scenario)

    @checked_at_old_snapshots
    def test_under_a_lease_that_only_its_old_snapshot_takes_for_current(
        self, path: Path, stage: Stage, tables: Tables, writer: Writer, level: IsolationLevel
    ) -> None:
        expected = path.overtaken
        if expected == STALE and not path.ends_transaction:
            expected = SERIALIZATION
        ids = tables.ids(path, expected)
        resources = path.resources(ids)
        begin(writer, tables, level)
        claim = stage.claim(resources)
        writer.connection.execute("SELECT count(*) FROM pg_class")
        for resource in resources:
            stage.admit(resource)
        present(writer, claim)
        with expecting(expected, writer, tables, path, ids):
            pass

    @at_every_level
    def test_under_the_right_lease(
        self, path: Path, stage: Stage, tables: Tables, writer: Writer, level: IsolationLevel
    ) -> None:
        ids = tables.ids(path, path.right)
        begin(writer, tables, level)
        present(writer, stage.claim(path.resources(ids)))
        with expecting(path.right, writer, tables, path, ids):
            pass
        if path.spoils and path.right == WRITES:
            stage.discard(path.scenario)

"""One database with every scenario's tables, and what tries the write paths on them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import Engine, create_engine

from fencing.schema.names import claim_item
from tests.coverage.model import WRITES, Ids, Path, Scenario, Statements, Writer
from tests.schema.conftest import accounts, admin, connect  # noqa: F401 - fixtures
from tests.support.bank import ALICE, BOB
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.databases import DatabaseFactory

# What scenarios call: the mode of every guard is a setting.
FENCE = """
CREATE FUNCTION public.fence(regclass, text, text DEFAULT 'insert,update,delete') RETURNS void
LANGUAGE sql AS $$
    SELECT fencing.fence_table($1, $2, string_to_array($3, ','), current_setting('test.mode'))
$$
"""
MINE, MATE, STRANGER = 1, 2, 3
FIRST_FREE = 4
FIRST_NEW = 10_000


class Tables:
    """The tables of one scenario, each in one mode.

    Args:
        owner: The owner's connection, in autocommit mode.
        scenario: What is in them.
        mode: Of all their guards.
    """

    def __init__(self, owner: psycopg.Connection, scenario: Scenario, mode: str) -> None:
        self.owner = owner
        self.schema = scenario.name if mode == "enforce" else f"{scenario.name} {mode}"
        self._accounts = scenario.accounts
        self._free = itertools.count(FIRST_FREE)
        self._new = itertools.count(FIRST_NEW)
        owner.execute(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE'.encode())
        owner.execute(f'CREATE SCHEMA "{self.schema}"'.encode())
        owner.execute(f"SET test.mode = {mode}".encode())
        self.enter(owner)
        script = scenario.tables.replace("{schema}", self.schema)
        owner.execute(script.replace("{accounts}", str(scenario.accounts)).encode())
        names = owner.execute(
            "SELECT CAST(CAST(c.oid AS regclass) AS text) FROM pg_class AS c "
            "WHERE c.relnamespace = CAST(quote_ident(%s) AS regnamespace) AND c.relkind = 'r'",
            [self.schema],
        ).fetchall()
        self._state = " UNION ALL ".join(
            f"SELECT '{name}', md5(string_agg(CAST(r AS text), ' ' ORDER BY CAST(r AS text))) "
            f"FROM ONLY {name} AS r"
            for (name,) in names
        ).encode()

    def enter(self, connection: psycopg.Connection) -> None:
        """Let a connection find these tables, from now on."""
        connection.execute(f'SET search_path = "{self.schema}", public'.encode())
        if not connection.autocommit:
            connection.commit()

    def state(self, connection: psycopg.Connection | None = None) -> set[tuple[object, ...]]:
        """A digest of every row, as this connection sees them."""
        if connection is None:
            connection = self.owner
            self.enter(connection)
        return set(connection.execute(self._state).fetchall())

    def ids(self, path: Path, outcome: str) -> Ids:
        """Accounts to write about; fresh ones where they are used up by that."""
        new = next(self._new)
        if outcome != WRITES:
            return Ids(MINE, MATE, new, STRANGER)
        mine = next(self._free)
        mate = next(self._free) if any("{mate" in need for need in path.needs) else MATE
        assert max(mine, mate) <= self._accounts, "the scenario needs more accounts"
        return Ids(mine, mate, new, STRANGER)


class Stage:
    """A database, its owner's connection, and the tables of each scenario that was asked for."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.plain_url = plain_url(url)
        self.owner = psycopg.connect(self.plain_url, autocommit=True)
        self.owner.execute(FENCE.encode())
        self.version = self.owner.info.server_version // 10_000
        self._tables: dict[tuple[str, str], Tables] = {}

    def tables(self, scenario: Scenario, mode: str = "enforce") -> Tables:
        """A scenario's tables; made once."""
        key = scenario.name, mode
        if key not in self._tables:
            self._tables[key] = Tables(self.owner, scenario, mode)
        return self._tables[key]

    def discard(self, scenario: Scenario, mode: str = "enforce") -> None:
        """Have these tables made again."""
        del self._tables[scenario.name, mode]

    def admit(self, resource: str, holder: str = ALICE) -> int:
        """Admit a holder under the next token; returns it."""
        row = self.owner.execute(
            "SELECT t, fencing.admit(%(r)s, t, %(h)s, 'test', 0) "
            "FROM (SELECT coalesce(fencing.mark(%(r)s), 0) + 1) AS m (t)",
            {"r": resource, "h": holder},
        ).fetchone()
        assert row is not None
        return int(row[0])

    def claim(self, resources: list[str]) -> str:
        """Admit one holder to all of these; returns what it presents."""
        return " ".join(claim_item(each, self.admit(each), ALICE) for each in resources)

    def overtake(self, resources: list[str]) -> None:
        """Admit another holder to all of these, without waiting for the locks of the first."""
        for resource in resources:
            self.owner.execute(
                "UPDATE fencing.fence SET token = token + 1, holder = %s WHERE resource = %s",
                [BOB, resource],
            )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what no driver or library has a part in."""
    for item in items:
        path = item.callspec.params.get("path") if hasattr(item, "callspec") else None
        if isinstance(path, Path) and isinstance(path.run, Statements):
            item.add_marker(pytest.mark.statements)


@pytest.fixture(scope="session")
def stage(database_factory: DatabaseFactory) -> Iterator[Stage]:
    """One database for all write paths."""
    with database_factory.fenced() as url:
        stage = Stage(url)
        yield stage
        stage.owner.close()


@pytest.fixture(scope="session")
def writers(stage: Stage) -> Iterator[Engine]:
    """Where writers come from: their connections are used again."""
    engine = create_engine(stage.url)
    yield engine
    engine.dispose()


@pytest.fixture
def writer(writers: Engine) -> Iterator[Writer]:
    """A connection to write with."""
    with writers.connect() as connection:
        driver = connection.connection.driver_connection
        assert driver is not None
        writer = Writer(connection, driver)
        yield writer
        driver.rollback()
        driver.autocommit = False
        driver.isolation_level = None


@pytest.fixture
def tables(stage: Stage, path: Path) -> Tables:
    """The tables of this path."""
    if stage.version < path.since:
        pytest.skip(f"needs PostgreSQL {path.since}")
    return stage.tables(path.scenario)

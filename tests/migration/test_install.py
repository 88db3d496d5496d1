"""install and uninstall: for whom, how often, two at a time, and what they never say."""

from __future__ import annotations

import logging
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    NullPool,
    Table,
    create_engine,
    inspect,
    make_url,
    text,
)
from sqlalchemy.exc import OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import fenced_by
from fencing.errors import FencingUsageError
from fencing.migration import describe, install, uninstall, versions_path
from fencing.migration.environment import VERSION_TABLE
from fencing.schema import ddl
from tests.migration.catalog import catalog
from tests.migration.conftest import operations
from tests.support.databases import plain_url
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from tests.support.child import Parent

REVISIONS = ("fencing_0001", "fencing_0002")
VERSION_1 = Path(__file__).parents[1].joinpath("schema/data/version_1.sql").read_text("utf-8")


def revisions(url: str) -> list[tuple[str]]:
    with psycopg.connect(plain_url(url)) as connection:
        return connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchall()


def run(url: str, script: str) -> None:
    with psycopg.connect(plain_url(url), autocommit=True) as connection:
        connection.execute(script.encode())


def test_it_installs_once_and_then_finds_nothing_to_do(database):
    assert install(database) == REVISIONS
    assert install(database) == ()
    assert revisions(database) == [(REVISIONS[-1],)]


def test_it_brings_forward_what_an_older_version_has_installed(database):
    run(database, f"BEGIN; {VERSION_1}; COMMIT")
    run(database, f"CREATE TABLE {VERSION_TABLE} (version_num varchar(32) PRIMARY KEY)")
    run(database, f"INSERT INTO {VERSION_TABLE} VALUES ('fencing_0001')")
    assert install(database) == ("fencing_0002",)
    with psycopg.connect(plain_url(database)) as connection:
        assert connection.execute(
            "SELECT table_name, resource, version FROM fencing.guards ORDER BY 1"
        ).fetchall() == [("accounts", "account:{id}", 2), ("ledger", "ledger", 2)]
    assert install(database) == ()


@pytest.mark.parametrize(
    "driver",
    [
        "postgresql",
        "postgres",
        "postgresql+psycopg",
        "postgresql+psycopg_async",
        "postgresql+asyncpg",
    ],
)
def test_a_url_may_name_any_driver_or_none(database, driver):
    _, _, rest = database.partition("://")
    assert install(f"{driver}://{rest}")


def test_it_takes_a_url_object(database):
    assert install(make_url(database))


def test_it_takes_an_engine_and_gives_its_connection_back(database):
    engine = create_engine(database, pool_size=1, max_overflow=0, pool_timeout=1)
    assert install(engine)
    assert install(engine) == ()
    assert engine.pool.checkedout() == 0
    with engine.connect() as connection:
        assert connection.get_isolation_level() == connection.default_isolation_level
    engine.dispose()


def test_on_a_connection_it_commits_a_transaction_of_its_own(database):
    engine = create_engine(database, poolclass=NullPool)
    with engine.connect() as connection:
        assert install(connection)
        assert not connection.in_transaction()
    assert revisions(database)


@pytest.mark.parametrize("finish", ["commit", "rollback"])
def test_in_a_transaction_of_the_callers_the_caller_decides(database, finish):
    engine = create_engine(database, poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text("CREATE TABLE mine (id int)"))
        assert install(connection)
        assert connection.in_transaction()
        getattr(connection, finish)()
    tables = inspect(engine)
    assert tables.has_table("mine") is tables.has_table("fence", "fencing") is (finish == "commit")


async def test_under_asyncio(database):
    engine = create_async_engine(database, poolclass=NullPool)
    async with engine.begin() as connection:
        assert await connection.run_sync(install)
    async with engine.begin() as connection:
        assert await connection.run_sync(uninstall)
    await engine.dispose()


def test_an_async_engine_is_told_what_to_do(database):
    with pytest.raises(TypeError, match="run_sync"):
        install(create_async_engine(database))


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_a_database_may_default_to_any_isolation_level(database, isolation):
    run(
        database,
        f"ALTER DATABASE {make_url(database).database} "
        f"SET default_transaction_isolation = '{isolation}'",
    )
    _install_from_several_processes(database)


def test_two_processes_at_once_install_it_once(database):
    _install_from_several_processes(database)


def _install_from_several_processes(url: str) -> None:
    children = [ChildProcess(install_in_a_child, url) for _ in range(3)]
    try:
        for child in children:
            child.wait_for("ready")
        # They all wait for the lock of one that has not finished, and go on together.
        engine = create_engine(url, poolclass=NullPool)
        with engine.begin() as connection:
            install(connection)
            connection.execute(text(f"DROP SCHEMA fencing CASCADE; DROP TABLE {VERSION_TABLE}"))
            for child in children:
                child.tell("go")
            _wait_until_all_wait(url, len(children))
        applied = [child.wait_for("done")["applied"] for child in children]
        for child in children:
            child.check()
    finally:
        for child in children:
            child.close()
    assert sorted(applied) == [[], [], list(REVISIONS)]
    assert revisions(url) == [(REVISIONS[-1],)]


def _wait_until_all_wait(url: str, number: int) -> None:
    with psycopg.connect(plain_url(url), autocommit=True) as connection:
        for _ in range(1000):
            row = connection.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
                "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
            ).fetchone()
            if row == (number,):
                return
            connection.execute("SELECT pg_sleep(0.01)")
    raise AssertionError(f"never saw {number} waiting")


def install_in_a_child(parent: Parent, url: str) -> None:
    parent.report("ready")
    parent.wait_for("go")
    parent.report("done", applied=list(install(url)))


def test_two_threads_at_once_install_in_two_databases(database_factory):
    with database_factory.empty() as one, database_factory.empty() as two:
        outcomes: dict[str, object] = {}

        def work(url: str) -> None:
            try:
                outcomes[url] = install(url)
            except BaseException as error:  # noqa: BLE001 - seen below
                outcomes[url] = error

        threads = [threading.Thread(target=work, args=(url,)) for url in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes == {one: REVISIONS, two: REVISIONS}


def test_it_says_nothing(database, capfd, caplog):
    caplog.set_level(logging.WARNING)
    install(database)
    uninstall(database)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def by_create_all(url: str) -> None:
    metadata = MetaData()
    fenced_by("t:{id}")(Table("t", metadata, Column("id", Integer, primary_key=True)))
    engine = create_engine(url, poolclass=NullPool)
    metadata.create_all(engine)


def by_a_migration(url: str) -> None:
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection, operations(connection) as op:
        op.install_fencing()


OTHER_WAYS = {
    "create_all": by_create_all,
    "a migration": by_a_migration,
    "a script": lambda url: run(url, ddl.script(ddl.install())),
}


def has_version_table(url: str) -> bool:
    with psycopg.connect(plain_url(url)) as connection:
        [found] = connection.execute("SELECT to_regclass(%s)", [VERSION_TABLE]).fetchone()
        return found is not None


@pytest.mark.parametrize("way", OTHER_WAYS)
def test_where_the_schema_came_another_way_there_is_nothing_to_do(database, way):
    OTHER_WAYS[way](database)
    before = catalog(database)
    assert install(database) == install(database) == ()
    assert catalog(database) == before
    assert not has_version_table(database)
    with pytest.raises(FencingUsageError, match="was not installed by `fencing install`"):
        uninstall(database)


def test_what_came_another_way_is_brought_forward_with_its_guards(database):
    run(database, f"BEGIN; {VERSION_1}; COMMIT")
    engine = create_engine(database, poolclass=NullPool)
    with engine.connect() as connection:
        assert install(connection.execution_options(isolation_level="READ COMMITTED")) == (
            "fencing_0002",
        )
    with psycopg.connect(plain_url(database)) as connection:
        assert connection.execute(
            "SELECT table_name, resource, version FROM fencing.guards ORDER BY 1"
        ).fetchall() == [("accounts", "account:{id}", 2), ("ledger", "ledger", 2)]
    assert install(database) == ()
    assert not has_version_table(database)


def test_whoever_installs_it_brings_it_to_the_same_version():
    assert REVISIONS[-1] == f"fencing_{ddl.SCHEMA_VERSION:04}"


def test_bringing_it_forward_is_undone_with_the_transaction_of_the_caller(database):
    run(database, f"BEGIN; {VERSION_1}; COMMIT")
    before = catalog(database)
    engine = create_engine(database, poolclass=NullPool)
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))
        assert install(connection) == ("fencing_0002",)
        connection.rollback()
    assert catalog(database) == before


def test_what_came_another_way_and_is_newer_is_left_alone(database):
    run(database, ddl.script(ddl.install()))
    run(
        database,
        "CREATE OR REPLACE FUNCTION fencing.versions"
        "(OUT schema_version integer, OUT oldest_client integer) "
        "LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 99, 1'",
    )
    before = catalog(database)
    with pytest.raises(FencingUsageError, match=r"of version 99.*upgrade the package fencing"):
        install(database)
    assert catalog(database) == before


@pytest.mark.parametrize("table", ["posts (id int)", "fence (id int, token text)"])
def test_somebody_else_s_schema_of_that_name_is_left_alone(database, table):
    run(database, f"CREATE SCHEMA fencing; CREATE TABLE fencing.{table}")
    before = catalog(database)
    with pytest.raises(FencingUsageError, match='schema "fencing" already, and it is none of ours'):
        install(database)
    assert catalog(database) == before


def test_a_schema_that_went_another_way_is_noticed(database):
    install(database)
    run(database, "DROP SCHEMA fencing CASCADE")
    with pytest.raises(FencingUsageError, match=f"drop {VERSION_TABLE} and install again"):
        install(database)


def test_a_schema_of_a_newer_version_is_left_alone(database):
    install(database)
    run(database, f"UPDATE {VERSION_TABLE} SET version_num = 'fencing_9999'")
    for function in (install, uninstall):
        with pytest.raises(FencingUsageError, match=r"newer one may have installed.*fencing_9999"):
            function(database)
    assert revisions(database) == [("fencing_9999",)]


def test_uninstalling_under_a_guarded_table_changes_nothing(database):
    install(database)
    run(database, "CREATE TABLE t (id int)")
    run(database, ddl.script(ddl.fence_table("t", "t:{id}")))
    with pytest.raises(FencingUsageError, match="still guards t"):
        uninstall(database)
    assert revisions(database) == [(REVISIONS[-1],)]


def test_a_failed_installation_leaves_nothing_behind(database):
    run(database, "CREATE TABLE t (id int); CREATE SCHEMA fencing")
    with pytest.raises(FencingUsageError):
        install(database)
    with pytest.raises(psycopg.errors.UndefinedTable):
        revisions(database)


SECRET = "geheim"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        (f"nonsense {SECRET}", ValueError),
        ("", ValueError),
        (f"postgresql://u:{SECRET}@h:port/d", ValueError),
        (f"sqlite:///{SECRET}", ValueError),
        (f"mysql+pymysql://u:{SECRET}@h/d", ValueError),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/d", OperationalError),
        (f"postgresql://u:{SECRET}@127.0.0.1:1/d?nonsense={SECRET}", ProgrammingError),
        (None, TypeError),
        (7, TypeError),
    ],
)
def test_a_bad_address_is_a_clear_error_without_the_password(url, kind):
    for function in (install, uninstall):
        with pytest.raises(kind) as caught:
            function(url)
        line = describe(caught.value)
        assert line
        assert SECRET not in line
        assert "\n" not in line
        assert caught.value.__suppress_context__ or SECRET not in repr(caught.value.__context__)


def test_what_is_unexpected_is_not_described():
    assert describe(KeyError("x")) is None
    assert describe(KeyboardInterrupt()) is None


def test_the_versions_are_where_they_say(database):
    assert sorted(path.name for path in versions_path().glob("*.py")) == [
        "0001_schema.py",
        "0002_version_2.py",
    ]
    assert versions_path().is_absolute()


def test_the_package_may_lie_under_any_path(database, tmp_path, monkeypatch):
    place = tmp_path / "100% odd: path"
    shutil.copytree(versions_path().parent, place)
    monkeypatch.setattr("fencing.migration.environment._LOCATIONS", (tmp_path, place))
    assert versions_path() == place / "versions"
    assert install(database)


def test_an_incomplete_package_says_so(database, tmp_path, monkeypatch):
    monkeypatch.setattr("fencing.migration.environment._LOCATIONS", (tmp_path,))
    with pytest.raises(FencingUsageError, match="lacks its migrations"):
        install(database)

"""Altering, observing, maintaining and upgrading, as migrations and as scripts do it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import FencingUsageError, GuardNotInstalledError, TableBusyError, fenced_by
from fencing.migration import (
    AlterFenceOp,
    FencedMaintenanceOp,
    FenceTableOp,
    UnfenceTableOp,
    UpgradeFencingOp,
    alter_fence,
    fence_table,
    maintain,
    unfence_table,
    upgrade,
)
from fencing.schema import ddl
from tests.migration.catalog import catalog
from tests.migration.conftest import offline, operations
from tests.support.databases import plain_url

VERSION_1 = Path(__file__).parents[1] / "schema/data/version_1.sql"


def run(url: str, *statements: str) -> None:
    with psycopg.connect(plain_url(url)) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def guards(url: str) -> list[tuple[object, ...]]:
    with psycopg.connect(plain_url(url)) as connection:
        return connection.execute(
            "SELECT table_schema, table_name, resource, operations, mode FROM fencing.guards "
            "WHERE covered_by IS NULL ORDER BY 1, 2"
        ).fetchall()


def write(url: str) -> None:
    run(url, "INSERT INTO t VALUES (1)")


@pytest.fixture
def table(database):
    """A database with schema ``fencing`` and a guarded table ``t``."""
    run(database, *ddl.install(), "CREATE TABLE t (id int)", *ddl.fence_table("t", "t:{id}"))
    return database


ALL = ["insert", "update", "delete"]


class TestAlterFence:
    def test_what_is_not_said_is_kept(self, table, migrate):
        migrate(lambda op: op.alter_fence("t", mode="observe"))
        assert guards(table) == [("public", "t", "t:{id}", ALL, "observe")]
        migrate(lambda op: op.alter_fence("t", operations=["insert"]))
        assert guards(table) == [("public", "t", "t:{id}", ["insert"], "observe")]
        migrate(lambda op: op.alter_fence("t", resource="other:{id}", mode="enforce"))
        assert guards(table) == [("public", "t", "other:{id}", ["insert"], "enforce")]

    def test_an_observed_write_passes_and_an_enforced_one_does_not(self, table, migrate):
        with pytest.raises(psycopg.Error, match="unfenced"):
            write(table)
        migrate(lambda op: op.alter_fence("t", mode="observe"))
        write(table)

    def test_offline_makes_the_same(self, table, migrate):
        def work(op):
            op.alter_fence("t", resource="100%:{id}", operations=["update"], mode="observe")

        script = offline(work)
        migrate(work)
        altered = catalog(table)
        migrate(lambda op: op.alter_fence("t", resource="t:{id}", operations=ALL, mode="enforce"))
        run(table, script)
        assert catalog(table) == altered

    def test_a_table_without_a_guard_has_none_to_alter(self, table, migrate):
        run(table, "CREATE TABLE u (id int)")
        with pytest.raises(FencingUsageError, match="u is not fenced"):
            migrate(lambda op: op.alter_fence("u", mode="observe"))

    def test_nothing_to_change_is_a_mistake(self):
        with pytest.raises(ValueError, match="changes nothing"):
            offline(lambda op: op.alter_fence("t"))

    def test_it_is_reversed_exactly(self):
        there = AlterFenceOp(
            "t",
            resource="b",
            existing_resource="a",
            mode="observe",
            existing_mode="enforce",
            schema="s",
            lock_timeout=2,
        )
        back = there.reverse()
        assert back.statements == ddl.alter_fence(
            "t", resource="a", mode="enforce", schema="s", lock_timeout=2
        )
        assert back.reverse().call() == there.call()

    @pytest.mark.parametrize(
        "change", [{"resource": "b"}, {"operations": ["insert"]}, {"mode": "observe"}]
    )
    def test_a_change_of_what_was_not_told_cannot_be_reversed(self, change):
        (name,) = change
        with pytest.raises(ValueError, match=f"pass existing_{name}="):
            AlterFenceOp("t", **change).reverse()


class TestBusyTables:
    @pytest.mark.parametrize(
        "work",
        [
            lambda op: op.unfence_table("t", lock_timeout=0.01),
            lambda op: op.alter_fence("t", resource="u:{id}", lock_timeout=0.01),
            lambda op: op.fenced_maintenance("t", lock_timeout=0.01),
            lambda op: op.fence_table("u", resource="u:{id}", lock_timeout=0.01),
        ],
    )
    def test_a_busy_table_is_an_error_that_names_who_is_in_the_way(self, table, migrate, work):
        run(table, "CREATE TABLE u (id int)")
        before = catalog(table)
        with psycopg.connect(plain_url(table)) as other:
            other.execute("LOCK TABLE t, u IN ROW EXCLUSIVE MODE")
            with pytest.raises(TableBusyError, match=r"is busy.*nothing was changed") as caught:
                migrate(work)
            assert caught.value.table in ("public.t", "public.u")
            assert caught.value.blocked_by == (other.info.backend_pid,)
            assert isinstance(caught.value, TimeoutError)
        assert catalog(table) == before

    async def test_asyncpgs_errors_are_read_as_well(self, table):
        pytest.importorskip("asyncpg")
        engine = create_async_engine(table.replace("+psycopg", "+asyncpg"))
        with psycopg.connect(plain_url(table)) as other:
            other.execute("LOCK TABLE t IN ROW EXCLUSIVE MODE")
            async with engine.connect() as connection:
                with pytest.raises(TableBusyError, match="is busy"):
                    await connection.run_sync(lambda c: unfence_table(c, "t", lock_timeout=0.01))
        await engine.dispose()

    @pytest.mark.parametrize("bad", [0, -1, True, "5", None])
    def test_a_lock_timeout_that_is_none_is_refused(self, bad):
        with pytest.raises((TypeError, ValueError), match="lock_timeout"):
            offline(lambda op: op.fence_table("t", resource="t", lock_timeout=bad))


class TestMaintenance:
    def test_the_rest_of_the_migration_writes_all_rows(self, table, migrate):
        def work(op):
            op.fenced_maintenance("t")
            op.execute("INSERT INTO t VALUES (1), (2)")

        migrate(work)
        with psycopg.connect(plain_url(table)) as connection:
            assert connection.execute("SELECT count(*) FROM t").fetchone() == (2,)
        with pytest.raises(psycopg.Error, match="unfenced"):
            write(table)

    def test_the_script_does_as_well(self, table):
        def work(op):
            op.fenced_maintenance("t")
            op.execute("INSERT INTO t VALUES (1)")

        run(table, offline(work))
        first = offline(work).partition(";")[0]
        with (
            psycopg.connect(plain_url(table), autocommit=True) as connection,
            pytest.raises(psycopg.errors.NoActiveSqlTransaction),
        ):
            connection.execute(first.encode())

    @pytest.mark.usefixtures("table")
    def test_without_a_transaction_it_is_refused(self, engine):
        automatic = engine.execution_options(isolation_level="AUTOCOMMIT")
        with automatic.connect() as connection, operations(connection) as op:
            with pytest.raises(FencingUsageError, match=r"fenced_maintenance.*autocommit_block"):
                op.fenced_maintenance("t")
            with pytest.raises(FencingUsageError, match="AUTOCOMMIT"):
                maintain(connection, "t")

    @pytest.mark.usefixtures("table")
    def test_within_an_autocommit_block_too(self, engine):
        with (
            engine.connect() as connection,
            operations(connection) as op,
            op.get_context().begin_transaction(),
            op.get_context().autocommit_block(),
            pytest.raises(FencingUsageError, match="autocommit_block"),
        ):
            op.fenced_maintenance("t")

    def test_its_reverse_is_itself(self):
        there = FencedMaintenanceOp("t", schema="s", lock_timeout=1.5)
        assert there.reverse() is there
        assert there.call() == ("fenced_maintenance", ("t",), {"schema": "s", "lock_timeout": 1.5})


class TestAutocommit:
    """Where every statement is a transaction, all of an operation's are still one."""

    def test_an_install_that_fails_leaves_nothing(self, database, engine, monkeypatch):
        monkeypatch.setattr(ddl, "install", lambda: [*real(), "SELECT 1/0"])
        automatic = engine.execution_options(isolation_level="AUTOCOMMIT")
        with (
            automatic.connect() as connection,
            operations(connection) as op,
            pytest.raises(DBAPIError, match="division by zero"),
        ):
            op.install_fencing()
        assert "fencing" not in {row[0] for row in catalog(database)["schemas"]}

    def test_everything_works_there(self, database, engine):
        run(database, "CREATE TABLE t (id int)")
        automatic = engine.execution_options(isolation_level="AUTOCOMMIT")
        with automatic.connect() as connection, operations(connection) as op:
            op.install_fencing()
            op.fence_table("t", resource="t:{id}")
            op.alter_fence("t", mode="observe")
            op.upgrade_fencing()
            assert len(guards(database)) == 1
            op.unfence_table("t")
            op.uninstall_fencing()


real = ddl.install


class TestUpgrade:
    def test_a_schema_of_this_version_is_left_alone(self, table, migrate, engine):
        before = catalog(table)
        migrate(lambda op: op.upgrade_fencing())
        with engine.begin() as connection:
            assert upgrade(connection) is False
        assert catalog(table) == before

    @pytest.mark.parametrize("way", ["operation", "script", "function"])
    def test_one_of_version_1_is_brought_forward(self, database, migrate, engine, way):
        run(database, VERSION_1.read_text("utf-8"))
        if way == "operation":
            migrate(lambda op: op.upgrade_fencing())
        elif way == "script":
            run(database, offline(lambda op: op.upgrade_fencing()))
        else:
            with engine.begin() as connection:
                assert upgrade(connection) is True
        assert ("public", "accounts", "account:{id}", ALL, "enforce") in guards(database)

    @pytest.mark.parametrize(
        "work",
        [
            lambda op: op.fence_table("ledger", resource="l"),
            lambda op: op.alter_fence("accounts", mode="observe"),
            lambda op: op.unfence_table("accounts"),
            lambda op: op.fenced_maintenance("accounts"),
        ],
    )
    def test_before_that_nothing_else_can_be_done(self, database, migrate, work):
        run(database, VERSION_1.read_text("utf-8"))
        with pytest.raises(FencingUsageError, match=r"version 1.*needs 2.*op\.upgrade_fencing\(\)"):
            migrate(work)

    def test_a_newer_schema_is_refused(self, table, migrate, engine):
        newer(table, version=99, oldest_client=1)
        with pytest.raises(FencingUsageError, match=r"version 99.*upgrade the package"):
            migrate(lambda op: op.upgrade_fencing())
        with engine.begin() as connection, pytest.raises(FencingUsageError, match="99"):
            upgrade(connection)
        with pytest.raises(psycopg.Error, match="99"):
            run(table, offline(lambda op: op.upgrade_fencing()))

    def test_a_newer_schema_that_serves_this_package_can_be_worked_with(self, table, migrate):
        newer(table, version=99, oldest_client=2)
        migrate(lambda op: op.alter_fence("t", mode="observe"))
        newer(table, version=99, oldest_client=3)
        with pytest.raises(FencingUsageError, match="99"):
            migrate(lambda op: op.alter_fence("t", mode="enforce"))

    def test_without_the_schema_the_error_says_so(self, migrate):
        with pytest.raises(GuardNotInstalledError, match=r"op\.install_fencing\(\)"):
            migrate(lambda op: op.upgrade_fencing())

    def test_its_reverse_finds_nothing_to_do(self):
        assert UpgradeFencingOp().reverse().call() == ("upgrade_fencing", (), {})


def newer(url: str, *, version: int, oldest_client: int) -> None:
    run(
        url,
        "CREATE OR REPLACE FUNCTION fencing.versions(OUT schema_version integer, "
        "OUT oldest_client integer) LANGUAGE sql IMMUTABLE AS "
        f"'SELECT {version}, {oldest_client}'",
    )


class TestOnAConnection:
    """The functions for those who have no Alembic context."""

    @pytest.fixture
    def connection(self, table, engine):
        run(table, "CREATE TABLE u (id int)")
        with engine.connect() as connection:
            yield connection

    def test_by_name(self, table, connection):
        fence_table(connection, "u", resource="u:{id}", operations=["insert"], mode="observe")
        alter_fence(connection, "u", mode="enforce")
        unfence_table(connection, "t")
        assert [guard[1] for guard in guards(table)] == ["t"]  # not committed yet
        connection.commit()
        assert guards(table) == [("public", "u", "u:{id}", ["insert"], "enforce")]

    def test_by_table_as_it_is_declared(self, table, connection):
        declared = Table("u", MetaData(schema="public"), Column("id", Integer))
        fenced_by("u:{id}", operations=["delete"], mode="observe")(declared)
        fence_table(connection, declared)
        connection.commit()
        assert guards(table)[1] == ("public", "u", "u:{id}", ["delete"], "observe")
        unfence_table(connection, declared)
        fence_table(connection, declared, resource="v:{id}", operations=ALL, mode="enforce")
        connection.commit()
        assert guards(table)[1] == ("public", "u", "v:{id}", ALL, "enforce")

    def test_a_table_that_is_not_declared_needs_a_template(self, connection):
        with pytest.raises(TypeError, match="needs resource="):
            fence_table(connection, Table("u", MetaData()))
        with pytest.raises(TypeError, match="needs resource="):
            fence_table(connection, "u")

    def test_maintenance(self, connection):
        maintain(connection, "t")
        connection.execute(text("INSERT INTO t VALUES (1)"))
        connection.commit()
        with pytest.raises(DBAPIError, match="unfenced"):
            connection.execute(text("INSERT INTO t VALUES (2)"))

    def test_the_same_errors_as_an_operations(self, connection):
        with pytest.raises(FencingUsageError, match="t is fenced already"):
            fence_table(connection, "t", resource="t")
        connection.rollback()
        with pytest.raises(ValueError, match="which the table does not have"):
            fence_table(connection, "u", resource="u:{nope}")

    def test_another_database_is_refused(self):
        engine = create_engine("sqlite://", poolclass=NullPool)
        with engine.connect() as connection:
            for call in (
                lambda: fence_table(connection, "t", resource="t"),
                lambda: upgrade(connection),
            ):
                with pytest.raises(FencingUsageError, match="only PostgreSQL"):
                    call()


ROUND = [
    FenceTableOp("t", resource="t:{id}", operations=["insert"], mode="observe", lock_timeout=1.5),
    UnfenceTableOp("t", resource="t:{id}", schema="s", mode="observe", operations=["insert"]),
]


@pytest.mark.parametrize("there", ROUND)
def test_a_reverse_of_a_reverse_is_the_same(there):
    assert there.reverse().reverse().call() == there.call()
    assert there.reverse().reverse().statements == there.statements

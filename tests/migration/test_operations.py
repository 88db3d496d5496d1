"""The operations, online and offline: whatever names say, the server gets it as it is."""

from __future__ import annotations

import itertools
import shutil
import subprocess

import psycopg
import pytest
from sqlalchemy import NullPool, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.ext.asyncio import create_async_engine

from fencing.errors import FencingUsageError, GuardNotInstalledError
from fencing.migration import FenceTableOp, InstallFencingOp, UnfenceTableOp, UninstallFencingOp
from fencing.schema import ddl
from tests.migration.catalog import catalog
from tests.migration.conftest import offline, operations
from tests.support.databases import plain_url

ODD = [
    "we%ird:t",
    "a:b",
    "%(x)s %s %%",
    ":x ::y \\:z",
    """it's "quoted\"""",
    "back\\slash\\",
    "$fencing$",
    "tab\tnew\nline",
    " spaced ",
    "ünïcode €",
    "__[SCHEMA_public]",
    "semi;colon --comment /* x",
]


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def make_table(url: str, name: str) -> None:
    with psycopg.connect(plain_url(url)) as connection:
        connection.execute(
            f"CREATE SCHEMA {quoted(name)} "
            f"CREATE TABLE {quoted(name)} ({quoted(name)} int, plain int)".encode()
        )


def fence_all(op) -> None:
    """Everything odd at once: schema, table, column and template."""
    op.install_fencing()
    for name in ODD:
        op.fence_table(
            name, resource=f"{name}={{{name}}}", schema=name, operations=["update", "insert"]
        )


STATEMENTS = ddl.install() + [
    statement
    for name in ODD
    for statement in ddl.fence_table(
        name, f"{name}={{{name}}}", schema=name, operations=["insert", "update"]
    )
]


def test_online_and_offline_make_what_is_written(database_factory):
    with (
        database_factory.empty() as online,
        database_factory.empty() as by_script,
        database_factory.empty() as by_hand,
    ):
        for url, name in itertools.product((online, by_script, by_hand), ODD):
            make_table(url, name)
        engine = create_engine(online, poolclass=NullPool)
        with engine.begin() as connection, operations(connection) as op:
            fence_all(op)
        with psycopg.connect(plain_url(by_script)) as connection:
            connection.execute(offline(fence_all).encode())
        with psycopg.connect(plain_url(by_hand)) as connection:
            for statement in STATEMENTS:
                connection.execute(statement.encode())
        expected = catalog(by_hand)
        assert catalog(online) == expected
        assert catalog(by_script) == expected
        assert len([row for row in expected["triggers"] if row[0] != "fencing"]) == 3 * len(ODD)
        if shutil.which("psql") is None:
            return
        with database_factory.empty() as by_psql:
            for name in ODD:
                make_table(by_psql, name)
            subprocess.run(
                ["psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", plain_url(by_psql)],
                input=f"SET client_encoding = 'UTF8';\n{offline(fence_all)}".encode(),
                check=True,
                stdout=subprocess.DEVNULL,
            )
            assert catalog(by_psql) == expected


def test_unfencing_works_for_every_name_too(engine, migrate):
    url = engine.url.render_as_string(hide_password=False)
    for name in ODD:
        make_table(url, name)
    before = catalog(url)

    def unfence_all(op) -> None:
        for name in ODD:
            op.unfence_table(name, schema=name)
        op.uninstall_fencing()

    migrate(fence_all)
    migrate(unfence_all)
    assert catalog(url) == before
    migrate(fence_all)
    with psycopg.connect(plain_url(url)) as connection:
        connection.execute(offline(unfence_all).encode())
    assert catalog(url) == before


def test_a_statement_reaches_the_driver_without_a_single_change(engine, migrate):
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, parameters, context, executemany):
        sent.append(statement)

    for name in ODD:
        make_table(engine.url.render_as_string(hide_password=False), name)
    migrate(fence_all)
    assert [statement for statement in sent if statement in STATEMENTS] == STATEMENTS
    assert "".join(sent).count("fence_table(CAST") == len(ODD)


def test_a_schema_translate_map_does_not_touch_them(engine):
    for name in ODD:
        make_table(engine.url.render_as_string(hide_password=False), name)
    mapped = engine.execution_options(schema_translate_map={"public": "elsewhere"})
    with mapped.begin() as connection, operations(connection) as op:
        fence_all(op)


async def test_under_asyncio_too(database):
    engine = create_async_engine(database)

    def work(connection) -> None:
        with operations(connection) as op:
            op.install_fencing()
            connection.execute(text("CREATE TABLE t (id int)"))
            op.fence_table("t", resource="100%:{id}")

    async with engine.begin() as connection:
        await connection.run_sync(work)
    await engine.dispose()
    assert len([row for row in catalog(database)["triggers"] if row[1] == "t"]) == 5


BAD_INPUT = [
    (lambda op: op.fence_table("t", resource="t:{"), ValueError, "double it"),
    (lambda op: op.fence_table("t", resource=""), ValueError, "empty"),
    (lambda op: op.fence_table("t", resource="x" * 513), ValueError, "512 bytes"),
    (lambda op: op.fence_table("t", resource=None), TypeError, "must be a str"),
    (lambda op: op.fence_table("t"), TypeError, "resource"),
    (lambda op: op.fence_table("", resource="t:{id}"), ValueError, "table must be a name"),
    (lambda op: op.fence_table(7, resource="t:{id}"), TypeError, "table must be a str"),
    (lambda op: op.fence_table("t", resource="t", schema=""), ValueError, "schema must be"),
    (lambda op: op.fence_table("t", resource="t", operations="insert"), TypeError, "several"),
    (lambda op: op.fence_table("t", resource="t", operations=[]), ValueError, "must be some of"),
    (lambda op: op.fence_table("t", resource="t", operations=["merge"]), ValueError, "merge"),
    (lambda op: op.fence_table("t", resource="t", operation=["insert"]), TypeError, "operation"),
    (lambda op: op.unfence_table(""), ValueError, "table must be a name"),
    (lambda op: op.unfence_table("t", resource="{"), ValueError, "double it"),
    (lambda op: op.unfence_table("t", operations=["merge"]), ValueError, "merge"),
    (lambda op: op.unfence_table("t", what=1), TypeError, "what"),
]


@pytest.mark.parametrize(("work", "kind", "message"), BAD_INPUT)
def test_bad_input_is_refused_before_anything_is_sent(engine, migrate, work, kind, message):
    sent: list[str] = []

    @event.listens_for(engine, "before_cursor_execute")
    def note(connection, cursor, statement, parameters, context, executemany):
        sent.append(statement)

    with pytest.raises(kind, match=message):
        migrate(work)
    assert sent == []
    with pytest.raises(kind, match=message):
        offline(work)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("t:{missing}", r'names the column "missing", which the table does not have$'),
        ("t:{day}", r'column "day" of type date, whose text .* Use columns of an integer type'),
    ],
)
def test_a_template_that_does_not_fit_the_table_is_a_value_error(migrate, template, message):
    def work(op) -> None:
        op.install_fencing()
        op.execute("CREATE TABLE t (id int, day date)")
        op.fence_table("t", resource=template)

    with pytest.raises(ValueError, match=message) as caught:
        migrate(work)
    assert isinstance(caught.value.__cause__, DBAPIError)


def test_a_table_without_a_guard_cannot_be_unfenced(migrate):
    def work(op) -> None:
        op.install_fencing()
        op.execute("CREATE TABLE t (id int)")
        op.unfence_table("t")

    with pytest.raises(FencingUsageError, match="t is not fenced"):
        migrate(work)


def test_a_guarded_table_cannot_be_fenced_again(migrate):
    def work(op) -> None:
        op.install_fencing()
        op.execute("CREATE TABLE t (id int)")
        op.fence_table("t", resource="t:{id}")
        op.fence_table("t", resource="t:{id}")

    with pytest.raises(
        FencingUsageError, match=r"t is fenced already\. Change its guard with op\.alter_fence"
    ):
        migrate(work)


def test_the_schema_cannot_be_dropped_under_a_guarded_table(engine, migrate):
    def work(op) -> None:
        op.install_fencing()
        op.execute("CREATE TABLE t (id int)")
        op.fence_table("t", resource="t:{id}")

    migrate(work)
    with pytest.raises(FencingUsageError, match=r"still guards t.*op\.unfence_table"):
        migrate(lambda op: op.uninstall_fencing())
    assert inspect(engine).has_table("fence", "fencing")


@pytest.mark.parametrize(
    "work",
    [
        lambda op: op.fence_table("t", resource="t:{id}"),
        lambda op: op.unfence_table("t"),
        lambda op: op.uninstall_fencing(),
    ],
)
def test_without_the_schema_the_error_says_how_to_get_it(migrate, work):
    migrate(lambda op: op.execute("CREATE TABLE t (id int)"))
    with pytest.raises(GuardNotInstalledError, match=r"op\.install_fencing\(\)"):
        migrate(work)


def test_installing_twice_is_refused(migrate):
    migrate(lambda op: op.install_fencing())
    with pytest.raises(FencingUsageError, match='schema "fencing" already'):
        migrate(lambda op: op.install_fencing())


@pytest.mark.parametrize(
    "work", [lambda op: op.install_fencing(), lambda op: op.fence_table("t", resource="t:{id}")]
)
def test_another_database_is_refused(work):
    with pytest.raises(FencingUsageError, match=r"only PostgreSQL.*not sqlite"):
        offline(work, dialect="sqlite")


def test_other_errors_of_the_server_stay_what_they_are(migrate):
    migrate(lambda op: op.install_fencing())
    with pytest.raises(ProgrammingError, match='"nowhere" does not exist'):
        migrate(lambda op: op.fence_table("nowhere", resource="t:{id}"))


def test_every_operation_that_can_be_reversed_is_reversed_exactly():
    assert isinstance(InstallFencingOp().reverse(), UninstallFencingOp)
    assert isinstance(UninstallFencingOp().reverse(), InstallFencingOp)
    fence = FenceTableOp("t", resource="t:{id}", schema="s", operations=["delete", "insert"])
    unfence = fence.reverse()
    assert unfence.statements == ddl.unfence_table("t", schema="s")
    again = unfence.reverse()
    assert again.statements == fence.statements
    assert again.to_diff_tuple() == fence.to_diff_tuple()
    assert again.to_diff_tuple() == (
        *("fence_table", "s", "t", "t:{id}"),
        *(("insert", "delete"), "enforce"),
    )


def test_unfencing_without_its_template_cannot_be_reversed():
    with pytest.raises(ValueError, match="pass resource="):
        UnfenceTableOp("t").reverse()

"""Every way to install makes the same schema, and going back and forth leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys

import psycopg
import pytest
from sqlalchemy import create_engine

from fencing.migration import install, install_script, uninstall
from fencing.migration.environment import VERSION_TABLE
from fencing.schema import ddl
from tests.migration.catalog import catalog
from tests.migration.conftest import offline, operations
from tests.support.databases import plain_url

BOOKKEEPING = (VERSION_TABLE,)


def run_script(url: str, script: str) -> None:
    with psycopg.connect(plain_url(url), autocommit=True) as connection:
        connection.execute(script.encode())


def by_operation(url: str) -> None:
    engine = create_engine(url)
    with engine.begin() as connection, operations(connection) as op:
        op.install_fencing()
    engine.dispose()


def by_command_line(url: str) -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "fencing.cli.main", "sql"],
        check=True,
        capture_output=True,
        text=True,
    )
    run_script(url, printed.stdout)


WAYS = {
    "install": install,
    "install_script": lambda url: run_script(url, install_script()),
    "operation": by_operation,
    "offline operation": lambda url: run_script(url, offline(lambda op: op.install_fencing())),
    "fencing sql": by_command_line,
}


@pytest.mark.parametrize("way", WAYS)
def test_the_migrated_schema_equals_the_rendered_one(database_factory, way):
    with database_factory.empty() as rendered, database_factory.empty() as migrated:
        with psycopg.connect(plain_url(rendered)) as connection:
            for statement in ddl.install():
                connection.execute(statement.encode())
        WAYS[way](migrated)
        expected = catalog(rendered)
        assert catalog(migrated, without=BOOKKEEPING) == expected
        # The comparison has something to compare.
        created = re.findall(
            r"^CREATE OR REPLACE FUNCTION", ddl.script(ddl.install()), re.MULTILINE
        )
        assert len(expected["functions"]) == len(created) > 10
        assert len(expected["triggers"]) > 3
        assert {"fence", "fence_pkey"} <= {row[1] for row in expected["columns"]}


def test_uninstalling_leaves_nothing_behind_and_installing_again_makes_the_same(database):
    empty = catalog(database)
    revisions = install(database)
    assert revisions
    installed = catalog(database)
    assert uninstall(database) == revisions[::-1]
    assert catalog(database) == empty
    assert uninstall(database) == ()
    install(database)
    assert catalog(database) == installed


def test_fencing_and_unfencing_leaves_nothing_behind(database):
    install(database)
    run_script(database, "CREATE TABLE accounts (id bigint PRIMARY KEY)")
    before = catalog(database)
    run_script(database, ddl.script(ddl.fence_table("accounts", "account:{id}")))
    fenced = catalog(database)
    assert fenced != before
    run_script(database, ddl.script(ddl.unfence_table("accounts")))
    assert catalog(database) == before
    run_script(database, ddl.script(ddl.fence_table("accounts", "account:{id}")))
    assert catalog(database) == fenced


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE fencing.fence DISABLE TRIGGER fence_keep_rows",
        "ALTER TABLE fencing.fence ENABLE TRIGGER fence_keep_rows",
        "ALTER TABLE fencing.fence DROP CONSTRAINT fence_token_range",
        "GRANT SELECT ON fencing.fence TO PUBLIC",
        "GRANT EXECUTE ON FUNCTION fencing.stamp() TO PUBLIC",
        "ALTER FUNCTION fencing.admit(text, bigint, text, text, int) SECURITY INVOKER",
        "ALTER FUNCTION fencing.admit(text, bigint, text, text, int) RESET search_path",
        "ALTER TABLE fencing.floor ALTER bucket TYPE bigint",
        "ALTER TABLE fencing.fence RESET (fillfactor)",
        "COMMENT ON TABLE fencing.fence IS 'else'",
        "ALTER TABLE fencing.fence ALTER owner DROP NOT NULL",
        "GRANT CREATE ON SCHEMA fencing TO PUBLIC",
        "CREATE INDEX ON fencing.fence (token)",
    ],
)
def test_the_comparison_sees_each_of_these(fenced_database, change):
    before = catalog(fenced_database)
    run_script(fenced_database, change)
    assert catalog(fenced_database) != before

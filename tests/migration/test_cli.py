"""``fencing install`` and ``fencing sql``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from fencing.cli.schema import install, sql
from fencing.schema import ddl
from tests.migration.catalog import catalog
from tests.support.databases import plain_url

SECRET = "geheim"
VERSION_1 = Path(__file__).parents[1].joinpath("schema/data/version_1.sql").read_bytes()


def call(command, *arguments: str, **environment: str):
    return CliRunner().invoke(command, arguments, env={"FENCING_DATABASE_URL": None, **environment})


def test_install_says_what_it_did(database):
    name, host = make_url(database).database, make_url(database).host
    first, second = call(install, database), call(install, database)
    assert first.output == (
        f'Installed schema fencing in database "{name}" on {host} (fencing_0001, fencing_0002).\n'
    )
    assert second.output == f'Schema fencing in database "{name}" on {host} is up to date.\n'
    assert first.exit_code == second.exit_code == 0


@pytest.mark.parametrize("driver", ["psycopg2", "pg8000", "asyncpg", "nosuch"])
def test_whichever_driver_the_url_names_psycopg_connects(database, driver):
    url = make_url(database).set(drivername=f"postgresql+{driver}")
    result = call(install, url.render_as_string(hide_password=False))
    assert result.output.startswith("Installed schema fencing in database")


def test_install_says_when_it_has_upgraded(database):
    call(install, database)
    with psycopg.connect(plain_url(database)) as connection:
        connection.execute("UPDATE fencing_version SET version_num = 'fencing_0001'")
    assert call(install, database).output.startswith("Upgraded schema fencing in database")


def test_install_says_where_there_is_nothing_to_do_since_others_did_it(database):
    name, host = make_url(database).database, make_url(database).host
    with psycopg.connect(plain_url(database)) as connection:
        connection.execute(ddl.script(ddl.install()).encode())
    for _ in range(2):
        result = call(install, database)
        assert result.exit_code == 0
        assert result.output == (
            f'Schema fencing in database "{name}" on {host} is of version 2, so there is nothing '
            "to do; it was installed another way: by create_all(), a migration or a script.\n"
        )


def test_install_says_when_it_has_upgraded_what_others_installed(database):
    with psycopg.connect(plain_url(database)) as connection:
        connection.execute(VERSION_1)
    result = call(install, database)
    assert result.exit_code == 0
    assert result.output.startswith('Upgraded schema fencing in database "')
    assert result.output.endswith(
        " (fencing_0002); it was installed another way: by create_all(), a migration or a script.\n"
    )


def test_install_takes_its_url_from_the_environment(database):
    assert "Installed" in call(install, FENCING_DATABASE_URL=plain_url(database)).output


def test_install_without_a_url_says_what_is_missing():
    result = call(install)
    assert result.exit_code == 2
    assert "FENCING_DATABASE_URL" in result.output


def test_a_password_is_never_printed(database):
    if make_url(database).password:
        pytest.skip("needs a server that takes any password")
    url = make_url(database).set(password=SECRET).render_as_string(hide_password=False)
    for arguments in ([url], [url, "--sql"]):
        result = call(install, *arguments)
        assert result.exit_code == 0
        assert SECRET not in result.output


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:1/x",
        f"postgresql://u:{SECRET}@h:port/x",
        f"postgresql://u:{SECRET}@nowhere.invalid/x",
        f"postgresql+nosuch://u:{SECRET}@127.0.0.1:1/x",
        "sqlite:///x",
        "x",
    ],
)
def test_a_failure_is_one_line_and_status_1(url):
    result = call(install, url)
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert SECRET not in result.output


def test_a_port_that_is_none_is_told_without_what_it_is():
    result = call(install, f"postgresql://u:{SECRET}/x")
    assert result.exit_code == 1
    assert result.output.startswith("Error: the port in the database URL is no number")
    assert SECRET not in result.output


def test_a_refusal_of_the_server_is_one_line(database):
    with psycopg.connect(plain_url(database)) as connection:
        connection.execute("CREATE SCHEMA fencing")
    result = call(install, database)
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert 'schema "fencing" already' in result.output


def test_missing_rights_are_one_line(database):
    name = make_url(database).database
    with psycopg.connect(plain_url(database), autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET role = 'pg_monitor'".encode())
    result = call(install, database)
    assert result.exit_code == 1
    assert "permission denied" in result.output
    assert result.output.count("\n") == 1


def test_a_bug_is_not_dressed_up_as_an_error_of_the_users(monkeypatch):
    def broken(url: str) -> None:
        raise KeyError(url)

    monkeypatch.setattr("fencing.migration.environment.bring_forward", broken)
    assert isinstance(call(install, "postgresql://h/x").exception, KeyError)


def test_sql_without_options_is_the_schema():
    assert call(sql).output == ddl.script(ddl.install())


def test_sql_of_a_table_is_its_guard():
    result = call(sql, "--table", "accounts", "--resource", "account:{id}")
    assert result.output == ddl.script(ddl.fence_table("accounts", "account:{id}"))


def test_sql_takes_schema_and_operations():
    arguments = ["--schema", "s", "--operations", "delete,insert"]
    result = call(sql, "--table", "a", "--resource", "a:{id}", *arguments)
    assert result.output == ddl.script(
        ddl.fence_table("a", "a:{id}", schema="s", operations=["insert", "delete"])
    )


def test_sql_takes_a_mode_and_alters_guards():
    observed = call(sql, "--table", "a", "--resource", "a:{id}", "--mode", "observe")
    assert observed.output == ddl.script(ddl.fence_table("a", "a:{id}", mode="observe"))
    altered = call(sql, "--alter", "a", "--schema", "s", "--mode", "enforce")
    assert altered.output == ddl.script(ddl.alter_fence("a", schema="s", mode="enforce"))
    everything = ["--resource", "b:{id}", "--operations", "update"]
    assert call(sql, "--alter", "a", *everything).output == ddl.script(
        ddl.alter_fence("a", resource="b:{id}", operations=["update"])
    )


def test_sql_upgrades():
    assert call(sql, "--upgrade").output == ddl.script(ddl.upgrade())


def test_sql_has_the_reverses():
    assert call(sql, "--uninstall").output == ddl.script(ddl.uninstall())
    unfence = ddl.script(ddl.unfence_table("a", schema="s"))
    assert call(sql, "--unfence", "a", "--schema", "s").output == unfence


@pytest.mark.parametrize(
    "arguments",
    [
        ["--table", "a"],
        ["--resource", "a"],
        ["--table", "a", "--resource", "a", "--uninstall"],
        ["--unfence", "a", "--uninstall"],
        ["--upgrade", "--uninstall"],
        ["--alter", "a"],
        ["--alter", "a", "--table", "a", "--resource", "a"],
        ["--mode", "observe"],
        ["--unfence", "a", "--mode", "observe"],
        ["--operations", "insert"],
        ["--schema", "s"],
        ["--schema", "s", "--uninstall"],
        ["extra"],
    ],
)
def test_options_that_do_not_fit_together_are_refused(arguments):
    result = call(sql, *arguments)
    assert result.exit_code == 2
    assert "DO $fencing$" not in result.output


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--table", "a", "--resource", "{"], "Error: "),
        (["--table", "a", "--resource", ""], "Error: "),
        (["--table", "", "--resource", "a"], "Error: "),
        (["--table", "a", "--resource", "a", "--operations", "merge"], "not 'merge'"),
        (["--table", "a", "--resource", "a", "--operations", ""], "separated by commas"),
        (["--alter", "a", "--operations", "insert, update"], "without blanks"),
        (["--alter", "a", "--operations", "insert,"], "separated by commas"),
        (["--table", "a", "--resource", "a", "--mode", "watch"], "'enforce', 'observe'"),
        (["--alter", "a", "--mode", ""], "'enforce', 'observe'"),
        (["--unfence", ""], "Error: "),
    ],
)
def test_bad_arguments_are_mistakes_in_the_call(arguments, told):
    result = call(sql, *arguments)
    assert result.exit_code == 2
    assert told in result.output
    for option in {"--operations", "--mode"} & set(arguments):
        assert f"Invalid value for '{option}'" in result.output


@pytest.mark.skipif(shutil.which("psql") is None, reason="needs psql")
def test_psql_runs_all_of_it_in_one_transaction(database):
    table = "we%ird:'\"é"
    with psycopg.connect(plain_url(database)) as connection:
        connection.execute(
            f'CREATE TABLE "{table.replace(chr(34), chr(34) * 2)}" (id int)'.encode()
        )
    before = catalog(database)
    guard = ["--table", table, "--resource", table + "={id}"]
    there = call(sql).output + call(sql, *guard).output
    back = call(sql, "--unfence", table).output + call(sql, "--uninstall").output
    for script in (there, back, there):
        subprocess.run(
            ["psql", "-X", "-q", "-1", "-v", "ON_ERROR_STOP=1", "-d", plain_url(database)],
            input=script.encode(),
            stdout=subprocess.DEVNULL,
            env={"PGCLIENTENCODING": "LATIN1", "PATH": "/usr/bin:/bin"},
            check=True,
        )
        if script is back:
            assert catalog(database) == before
    comments = {row[2]: row[5] for row in catalog(database)["triggers"] if row[1] == table}
    assert len(comments) == 5
    assert "é={id}" in comments["fencing_insert"]

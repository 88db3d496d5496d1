"""Python and SQL agree on their names, and tools that read the SQL find nothing to change."""

from __future__ import annotations

import re

import pytest

from fencing.schema import ddl, names

ALL_SQL = "\n".join(
    [
        *ddl.install(),
        *ddl.uninstall(),
        *ddl.fence_table("accounts", "account:{id}"),
        *ddl.fence_table("ledger", "ledger", operations=["delete"]),
        *ddl.unfence_table("accounts"),
    ]
)
SQLSTATES = {
    name: value
    for name, value in vars(names).items()
    if isinstance(value, str) and re.fullmatch(r"ZF\d{3}", value)
}
CONSTANTS = {
    name: value
    for name, value in vars(names).items()
    if name.isupper() and isinstance(value, str) and not value.startswith("SELECT")
}


def test_no_sqlstate_means_two_things():
    assert len(set(SQLSTATES.values())) == len(SQLSTATES)


def test_every_sqlstate_in_the_sql_has_a_name():
    assert set(re.findall(r"ZF\d{3}", ALL_SQL)) == set(SQLSTATES.values())


@pytest.mark.parametrize("name", CONSTANTS)
def test_every_name_occurs_in_the_sql(name):
    assert re.search(rf"(?<![\w]){re.escape(CONSTANTS[name])}(?![\w])", ALL_SQL)


CALLS = [
    names.ADMIT, names.ENTER, names.MARK, names.EVICT, names.ACQUIRE, names.ACQUIRE_ALL,
    names.RENEW, names.RELEASE, names.RAISE_TOKEN, names.LOOK, names.SCAN, names.FORCE_RELEASE,
    names.IDENTITY,
]  # fmt: skip


@pytest.mark.parametrize("call", CALLS)
def test_every_call_matches_a_function_that_callers_may_execute(call):
    function = re.search(r"fencing\.\w+", call).group()
    types = ", ".join(re.findall(r"CAST\(:\w+ AS ([\w ]+)\)", call))
    types = types.replace("double precision", "timestamptz")  # through to_timestamp()
    assert f"'EXECUTE ON FUNCTION {function}({types})'" in ALL_SQL
    assert f"CREATE OR REPLACE FUNCTION {function}(" in ALL_SQL


def test_the_versions_are_told_once_in_sql_and_once_in_python():
    assert f"SELECT {ddl.SCHEMA_VERSION}, 1 $" in ALL_SQL
    assert f"v_ours integer := {ddl.SCHEMA_VERSION};" in ALL_SQL


def test_nothing_in_the_sql_looks_like_a_parameter():
    assert "%" not in ALL_SQL
    assert re.findall(r":\w+", ALL_SQL) == []
    assert "\t" not in ALL_SQL


def test_the_sql_is_plain_ascii():
    assert ALL_SQL.isascii()


def test_install_is_split_into_single_statements():
    statements = ddl.install()
    assert len(statements) > 20
    for statement in statements:
        assert "\n--;" not in statement
        outside = re.sub(r"(?s)\$fencing\$.*?\$fencing\$|--[^\n]*|'[^']*'", "", statement)
        assert ";" not in outside, statement

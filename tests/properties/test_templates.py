"""Python and PostgreSQL compute the same resource, whatever columns and tables are called."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st

from fencing.schema import ddl
from fencing.schema.names import claim_item
from fencing.schema.template import Template, quote_identifier
from tests.properties.strategies import columns, resources, values
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.databases import DatabaseFactory

HOLDER = "0123456789abcdef" * 2
TYPES = {int: "bigint", bool: "boolean", uuid.UUID: "uuid", str: "text"}


@pytest.fixture(scope="module")
def connection(database_factory: DatabaseFactory) -> Iterator[psycopg.Connection]:
    with (
        database_factory.fenced() as url,
        psycopg.connect(plain_url(url), autocommit=True) as connection,
    ):
        yield connection


def template_of(prefix: str, names: list[str]) -> Template:
    """A template with these columns, behind a text that is meant literally."""

    def doubled(text: str) -> str:
        return text.replace("{", "{{").replace("}", "}}")

    return Template.parse(doubled(prefix) + ":".join("{" + name + "}" for name in names))


# A template cannot name a column with a brace in its name, and says so.
fields = columns.filter(lambda name: not set(name) & set("{}"))
rows = st.dictionaries(fields, values, min_size=1, max_size=3)


@given(resources, rows)
@example("a'b\\", {'"': "'"})
def test_a_row_has_the_same_name_in_both(connection, prefix, row):
    template = template_of(prefix, list(row))
    assert set(template.columns) == set(row)
    try:
        expected = template.format(row)
    except ValueError:
        reject()  # too long for a resource
    listed = ", ".join(
        f"CAST(%s AS {TYPES[type(value)]}) AS {quote_identifier(name)}".replace("%", "%%").replace(
            "CAST(%%s", "CAST(%s", 1
        )
        for name, value in row.items()
    )
    sql = template.sql("r").replace("%", "%%")
    answer = connection.execute(
        f"SELECT {sql} FROM (SELECT {listed}) AS r".encode(), list(row.values())
    ).fetchone()
    assert answer == (expected,)


@settings(max_examples=25)  # each makes a table
@given(columns, fields, resources, st.integers(1, 2**31 - 1))
@example('"; DROP TABLE fencing.fence; --', "$fencing$", "{}'", 1)
@example("%s", "%(x)s", ":x", 1)
def test_a_guard_on_any_names_refuses_and_lets_pass(connection, table, column, prefix, number):
    template = template_of(prefix, [column])
    try:
        resource = template.format({column: number})
    except ValueError:
        reject()
    quoted, field = quote_identifier(table), quote_identifier(column)

    def run(statement: str) -> None:
        connection.execute(statement.encode())

    with connection.transaction(force_rollback=True):
        run(f"CREATE TABLE {quoted} ({field} bigint PRIMARY KEY, note text)")
        for statement in ddl.fence_table(table, template.source, schema="public"):
            run(statement)
        write = f"INSERT INTO {quoted} VALUES ({number})"
        with pytest.raises(psycopg.DatabaseError) as refused, connection.transaction():
            run(write)
        assert refused.value.sqlstate == "ZF002"
        connection.execute(
            "INSERT INTO fencing.fence (resource, token, holder, owner) VALUES (%s, 7, %s, 'me')",
            (resource, HOLDER),
        )
        connection.execute("SELECT fencing.enter(%s, NULL)", (claim_item(resource, 7, HOLDER),))
        run(write)
        with pytest.raises(psycopg.DatabaseError) as refused, connection.transaction():
            run(f"INSERT INTO {quoted} VALUES ({number - 1})")
        assert refused.value.sqlstate == "ZF002"
        for statement in ddl.unfence_table(table, schema="public"):
            run(statement)
        run(f"INSERT INTO {quoted} VALUES ({number - 1})")

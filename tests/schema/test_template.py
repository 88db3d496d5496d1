"""Resource templates, and that Python and PostgreSQL compute the same name from one."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from fencing.schema.template import Column, Template, quote_identifier, quote_literal

if TYPE_CHECKING:
    import psycopg


def test_a_template_is_text_and_columns_in_order():
    template = Template.parse("tenant:{tenant_id}/order:{order_id}")
    assert template.parts == (
        "tenant:",
        Column("tenant_id"),
        "/order:",
        Column("order_id"),
    )
    assert template.columns == ("tenant_id", "order_id")


def test_a_column_named_twice_counts_once():
    assert Template.parse("{a}{b}{a}").columns == ("a", "b")


def test_a_constant_template_has_no_columns():
    assert Template.parse("ledger").columns == ()
    assert Template.parse("ledger").format({}) == "ledger"


def test_doubled_braces_are_braces():
    assert Template.parse("{{x}}:{id}").format({"id": 1}) == "{x}:1"


@pytest.mark.parametrize("name", ["we ird", "a:b", 'a"b', "a'b", "a%b", "a\\b", "ü", "a.b", "!r"])
def test_a_field_takes_any_column_name(name):
    assert Template.parse(f"r:{{{name}}}").columns == (name,)


@pytest.mark.parametrize(
    "source", ["{", "}", "a{", "a}", "{}", "a{}b", "{a", "{a{b}}", "{a}}", "a}b", "{{{"]
)
def test_unbalanced_braces_are_refused(source):
    with pytest.raises(ValueError, match="double it"):
        Template.parse(source)


@pytest.mark.parametrize("source", ["", "a\0b", "x" * 513])
def test_what_cannot_be_a_name_is_refused(source):
    with pytest.raises(ValueError):  # noqa: PT011 -- three messages
        Template.parse(source)


@pytest.mark.parametrize("source", [None, b"account:{id}", 7])
def test_a_template_must_be_a_str(source):
    with pytest.raises(TypeError, match="must be a str"):
        Template.parse(source)


@pytest.mark.parametrize("values", [{}, {"id": 1, "more": 2}, {"ID": 1}])
def test_formatting_takes_exactly_the_columns(values):
    with pytest.raises(TypeError, match="takes exactly"):
        Template.parse("account:{id}").format(values)


def test_a_row_without_the_column_has_no_resource():
    with pytest.raises(ValueError, match="None"):
        Template.parse("account:{id}").format({"id": None})


@pytest.mark.parametrize("value", [1.5, b"x", object(), [1]])
def test_a_value_without_one_text_form_is_refused(value):
    with pytest.raises(TypeError, match="same text"):
        Template.parse("account:{id}").format({"id": value})


@pytest.mark.parametrize("value", ["", "x" * 513, "a\0b", "\ud800"])
def test_a_result_that_cannot_be_a_resource_is_refused(value):
    with pytest.raises(ValueError):  # noqa: PT011 -- four messages
        Template.parse("{id}").format({"id": value})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("smallint", -32768),
        ("integer", 0),
        ("bigint", 9223372036854775807),
        ("text", "a'b\\c{d}%e:f\n€"),
        ("varchar(9)", " spaced "),
        ("uuid", uuid.UUID(int=0xABCDEF)),
        ("boolean", True),
        ("boolean", False),
    ],
)
def test_python_and_the_server_compute_the_same_name(admin: psycopg.Connection, kind, value):
    template = Template.parse("it's \\ {{%}} :x {we ird:%s\"}")
    query = sql.SQL("SELECT {} FROM (SELECT CAST({} AS {}) AS {}) AS r").format(
        sql.SQL(template.sql("r")),
        sql.Literal(value),
        sql.SQL(kind),
        sql.Identifier('we ird:%s"'),
    )
    (computed,) = admin.execute(query).fetchone()
    assert computed == template.format({'we ird:%s"': value})


@pytest.mark.parametrize("strings", ["on", "off"])
@pytest.mark.parametrize("text", ["", "'", "''", "\\", "\\'", "a\\nb", "%s", ":x", '"', "$1", "ü€"])
def test_a_quoted_literal_reads_back(admin: psycopg.Connection, text, strings):
    with admin.transaction():
        if strings == "off":
            admin.execute("SET LOCAL escape_string_warning = off")
        admin.execute(f"SET LOCAL standard_conforming_strings = {strings}")
        assert admin.execute(f"SELECT{quote_literal(text)}".encode()).fetchone() == (text,)


@pytest.mark.parametrize("name", ["a", '"', 'a"b', "%s", ":x", "a b", "\\", "SELECT", "ü", "'"])
def test_a_quoted_identifier_reads_back(admin: psycopg.Connection, name):
    cursor = admin.execute(f"SELECT 1 AS {quote_identifier(name)}".encode())
    assert cursor.description[0].name == name

"""The guard of a table: rendering it, and where it goes when tables are renamed or dropped."""

from __future__ import annotations

import itertools
import json

import psycopg
import pytest

from fencing.schema import ddl
from fencing.schema.names import (
    ALREADY_FENCED,
    NOT_FENCED,
    PIN,
    STILL_FENCED,
    TRIGGERS,
    UNFENCED,
    UNFIT_TEMPLATE,
)
from tests.schema.sql import ALICE, admit, enter, refused, run

WEIRD = [
    "we%ird:t",
    'a"b',
    "a'b",
    "back\\slash",
    "sp ace",
    "$fencing$",
    "tab\tted",
    "ü",
    "%s",
    ":x",
]


def guards(connection: psycopg.Connection, table: str) -> dict[str, str]:
    """Trigger name to its state, of our triggers on a table."""
    return dict(
        connection.execute(
            "SELECT tgname, tgenabled FROM pg_trigger WHERE tgrelid = %s::regclass "
            "AND tgname LIKE 'fencing%%' AND tgname <> %s",
            (table, PIN),
        ).fetchall()
    )


def guard_functions(connection: psycopg.Connection) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencing'::regnamespace "
        "AND proname LIKE 'guard@_%' ESCAPE '@'"
    ).fetchone()
    assert row is not None
    return row[0]


def unguarded_writes_are_refused(connection: psycopg.Connection, table: str) -> None:
    with refused(UNFENCED):
        connection.execute(f"INSERT INTO {table} VALUES (1)".encode())


@pytest.fixture
def tables(admin: psycopg.Connection) -> psycopg.Connection:
    admin.execute("CREATE TABLE a (id bigint); CREATE TABLE b (id bigint)")
    return admin


@pytest.mark.parametrize(
    "operations",
    [
        combination
        for size in (1, 2, 3)
        for combination in itertools.combinations(ddl.OPERATIONS, size)
    ],
)
def test_exactly_the_wanted_operations_are_guarded_always(tables, operations):
    run(tables, ddl.fence_table("a", "a:{id}", operations=reversed(operations)))
    wanted = {TRIGGERS[operation] for operation in operations}
    if "delete" in operations:
        wanted.add(TRIGGERS["truncate"])
    assert guards(tables, "a") == dict.fromkeys(wanted, "A")
    for operation in {"insert", "update", "delete"} - set(operations):
        tables.execute(
            {
                "insert": "INSERT INTO a VALUES (1)",
                "update": "UPDATE a SET id = 2",
                "delete": "DELETE FROM a",
            }[operation]
        )


def test_a_guard_says_what_it_was_made_from(tables):
    run(tables, ddl.fence_table("a", "it's \\ {{%}} :x é {id}", operations=["update", "insert"]))
    rows = tables.execute(
        "SELECT obj_description(oid, 'pg_trigger') FROM pg_trigger WHERE tgrelid = 'a'::regclass "
        "AND tgname <> %s",
        (PIN,),
    ).fetchall()
    assert [json.loads(text) for (text,) in rows] == [
        {
            "version": ddl.SCHEMA_VERSION,
            "resource": "it's \\ {{%}} :x é {id}",
            "operations": ["insert", "update"],
            "mode": "enforce",
        }
    ] * 2


@pytest.mark.parametrize("operations", ["insert", "", b"x"])
def test_operations_must_be_several_strings(operations):
    with pytest.raises((TypeError, ValueError)):
        ddl.fence_table("a", "a:{id}", operations=operations)


@pytest.mark.parametrize("operations", [[], ["truncate"], ["INSERT"], ["insert", "x"], [None]])
def test_operations_that_cannot_be_guarded_are_refused(operations):
    with pytest.raises(ValueError, match="operations must be some of"):
        ddl.fence_table("a", "a:{id}", operations=operations)


@pytest.mark.parametrize(
    ("table", "schema", "kind"),
    [
        ("", None, ValueError),
        ("a\0", None, ValueError),
        ("a", "", ValueError),
        (None, None, TypeError),
        (b"a", None, TypeError),
        ("a", 5, TypeError),
        ("\ud800", None, ValueError),
    ],
)
def test_what_is_no_name_is_refused(table, schema, kind):
    with pytest.raises(kind):
        ddl.fence_table(table, "a:{id}", schema=schema)


@pytest.mark.parametrize("name", WEIRD)
def test_tables_columns_and_templates_may_be_called_anything(admin, name):
    quoted = '"' + name.replace('"', '""') + '"'
    admin.execute(f"CREATE SCHEMA {quoted}".encode())
    admin.execute(f"CREATE TABLE {quoted}.{quoted} ({quoted} bigint)".encode())
    template = f"{name}={{{name}}}"
    run(admin, ddl.fence_table(name, template, schema=name))
    table = f"{quoted}.{quoted}"
    unguarded_writes_are_refused(admin, table)
    admit(admin, 1, resource=f"{name}=1")
    with admin.transaction():
        enter(admin, (f"{name}=1", 1, ALICE))
        admin.execute(f"INSERT INTO {table} VALUES (1)".encode())
    run(admin, ddl.unfence_table(name, schema=name))
    assert guard_functions(admin) == 0


def test_a_renamed_table_stays_guarded_and_so_does_the_next_of_its_name(tables):
    run(tables, ddl.fence_table("a", "a:{id}"))
    tables.execute("ALTER TABLE a RENAME TO old_a; CREATE TABLE a (id bigint)")
    run(tables, ddl.fence_table("a", "new:{id}"))
    with refused(UNFENCED, match='"a:1"'):
        tables.execute("INSERT INTO old_a VALUES (1)")
    with refused(UNFENCED, match='"new:1"'):
        tables.execute("INSERT INTO a VALUES (1)")
    run(tables, ddl.unfence_table("old_a"))
    tables.execute("INSERT INTO old_a VALUES (1)")
    unguarded_writes_are_refused(tables, "a")
    run(tables, ddl.unfence_table("a"))
    assert guard_functions(tables) == 0


def test_two_renamed_tables_in_a_row_stay_guarded(tables):
    for number in range(3):
        run(tables, ddl.fence_table("a", f"{number}:{{id}}"))
        tables.execute(f"ALTER TABLE a RENAME TO a{number}; CREATE TABLE a (id bigint)".encode())
    for number in range(3):
        with refused(UNFENCED, match=f'"{number}:1"'):
            tables.execute(f"INSERT INTO a{number} VALUES (1)".encode())


def test_a_table_moved_to_another_schema_is_unfenced_there(tables):
    run(tables, ddl.fence_table("a", "a:{id}"))
    tables.execute("CREATE SCHEMA s; ALTER TABLE a SET SCHEMA s")
    unguarded_writes_are_refused(tables, "s.a")
    run(tables, ddl.unfence_table("a", schema="s"))
    tables.execute("INSERT INTO s.a VALUES (1)")


def test_one_name_in_two_schemas_makes_two_guards(tables):
    tables.execute("CREATE SCHEMA s; CREATE TABLE s.a (id bigint)")
    run(tables, ddl.fence_table("a", "public:{id}"))
    tables.execute("SET search_path = s, public")
    run(tables, ddl.fence_table("a", "s:{id}"))
    for schema in ("public", "s"):
        with refused(UNFENCED, match=f'"{schema}:1"'):
            tables.execute(f"INSERT INTO {schema}.a VALUES (1)".encode())


def test_a_dropped_table_does_not_keep_its_successor_from_being_fenced(tables):
    run(tables, ddl.fence_table("a", "a:{id}"))
    tables.execute("DROP TABLE a; CREATE TABLE a (id bigint)")
    tables.execute("INSERT INTO a VALUES (1)")
    run(tables, ddl.fence_table("a", "a:{id}"))
    unguarded_writes_are_refused(tables, "a")
    assert guard_functions(tables) == 1


@pytest.mark.parametrize("schema", [None, "public"])
def test_a_table_is_fenced_once(tables, schema):
    run(tables, ddl.fence_table("a", "a:{id}", operations=["delete"]))
    with refused(ALREADY_FENCED, match="a is fenced already"):
        run(tables, ddl.fence_table("a", "other:{id}", schema=schema, operations=["insert"]))


def test_unfencing_a_table_that_is_not_fenced_is_refused(tables):
    run(tables, ddl.fence_table("b", "b:{id}"))
    with refused(NOT_FENCED, match="a is not fenced"):
        run(tables, ddl.unfence_table("a"))
    unguarded_writes_are_refused(tables, "b")


def test_unfencing_leaves_triggers_of_others_alone(tables):
    tables.execute(
        "CREATE FUNCTION other() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'; "
        "CREATE TRIGGER other AFTER INSERT ON a EXECUTE FUNCTION other()"
    )
    run(tables, ddl.fence_table("a", "a:{id}"))
    run(tables, ddl.unfence_table("a"))
    assert tables.execute("SELECT tgname FROM pg_trigger").fetchall().count(("other",)) == 1


def test_the_schema_stays_while_a_table_is_fenced(tables):
    run(tables, ddl.fence_table("a", "a:{id}"))
    with refused(STILL_FENCED, match="still guards a"):
        run(tables, ddl.uninstall())
    run(tables, ddl.unfence_table("a"))
    run(tables, ddl.uninstall())
    assert tables.execute("SELECT to_regnamespace('fencing')").fetchone() == (None,)


@pytest.mark.parametrize(
    "kind",
    [
        *("float8", "numeric", "date", "timestamptz", "char(9)", '"char"', "bytea", "json"),
        *("int[]", "interval", "name", "mood", "a_date", "inet"),
    ],
)
def test_a_type_whose_text_depends_on_settings_is_refused(admin, kind):
    admin.execute("CREATE TYPE mood AS ENUM ('fine'); CREATE DOMAIN a_date AS date")
    admin.execute(f"CREATE TABLE a (id int, k {kind})".encode())
    with refused(UNFIT_TEMPLATE, match='column "k"') as caught:
        run(admin, ddl.fence_table("a", "a:{id}:{k}"))
    assert "integer type, text, varchar, uuid or boolean" in caught.value.diag.message_hint
    assert guards(admin, "a") == {}


@pytest.mark.parametrize(
    "kind", ["int2", "int4", "int8", "text", "varchar(9)", "uuid", "bool", "d2"]
)
def test_a_type_with_one_text_form_is_accepted(admin, kind):
    admin.execute("CREATE DOMAIN d1 AS int8 CHECK (value > 0); CREATE DOMAIN d2 AS d1")
    admin.execute(f"CREATE TABLE a (k {kind})".encode())
    run(admin, ddl.fence_table("a", "a:{k}"))
    assert len(guards(admin, "a")) == 4


@pytest.mark.parametrize("column", ["ID", "missing", "ctid", "tableoid", "dropped", "id "])
def test_a_column_the_table_has_not_is_refused(admin, column):
    admin.execute("CREATE TABLE a (id int, dropped int); ALTER TABLE a DROP COLUMN dropped")
    with refused(UNFIT_TEMPLATE, match="does not have"):
        run(admin, ddl.fence_table("a", f"a:{{{column}}}"))


def test_a_column_that_is_generated_but_not_stored_is_refused(admin):
    if admin.info.server_version < 180000:
        pytest.skip("came with PostgreSQL 18")
    admin.execute("CREATE TABLE a (id int, k int GENERATED ALWAYS AS (id + 1) VIRTUAL)")
    with refused(UNFIT_TEMPLATE, match="not stored"):
        run(admin, ddl.fence_table("a", "a:{k}"))


def test_a_stored_generated_column_is_accepted(admin):
    admin.execute("CREATE TABLE a (id int, k int GENERATED ALWAYS AS (id + 1) STORED)")
    run(admin, ddl.fence_table("a", "a:{k}"))
    with refused(UNFENCED, match='"a:2"'):
        admin.execute("INSERT INTO a VALUES (1)")


@pytest.mark.parametrize(
    ("make", "why"),
    [
        ("CREATE VIEW a AS SELECT 1 AS id", "only a table"),
        ("CREATE MATERIALIZED VIEW a AS SELECT 1 AS id", "only a table"),
        ("CREATE SEQUENCE a", "only a table"),
        (
            "CREATE TABLE p (id int) PARTITION BY LIST (id); CREATE TABLE a PARTITION OF p DEFAULT",
            "part of public.p",
        ),
        ("CREATE TABLE p (id int); CREATE TABLE a () INHERITS (p)", "part of public.p"),
        (
            "CREATE TABLE a (id int); CREATE TABLE b (id int); CREATE TABLE c () INHERITS (a, b)",
            "inherits from public.b as well",
        ),
        (
            (
                "CREATE EXTENSION file_fdw; "
                "CREATE SERVER f FOREIGN DATA WRAPPER file_fdw; "
                "CREATE TABLE a (id int) PARTITION BY LIST (id); "
                "CREATE FOREIGN TABLE x PARTITION OF a DEFAULT "
                "SERVER f OPTIONS (filename '/dev/null')"
            ),
            "part public.x is a foreign table",
        ),
    ],
)
def test_what_would_leave_a_way_around_the_guard_is_refused(admin, make, why):
    try:
        admin.execute(make)
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("this server has no file_fdw")
    with refused(UNFIT_TEMPLATE, match=why):
        run(admin, ddl.fence_table("a", "a:{id}"))


@pytest.mark.parametrize("table", ["fence", "floor", "maintenance"])
def test_the_tables_of_the_schema_itself_are_not_fenced(admin, table):
    with refused(UNFIT_TEMPLATE, match="belongs to fencing"):
        run(admin, ddl.fence_table(table, "ledger", schema="fencing"))


def test_fencing_needs_the_table_and_the_schema(admin):
    with pytest.raises(psycopg.errors.UndefinedTable):
        run(admin, ddl.fence_table("nowhere", "a:{id}"))
    admin.execute("CREATE TABLE a (id int)")
    run(admin, ddl.uninstall())
    with pytest.raises(psycopg.errors.InvalidSchemaName, match="fencing"):
        run(admin, ddl.fence_table("a", "a:{id}"))


def test_a_script_ends_every_statement():
    assert ddl.script(["SELECT 1", "SELECT 2"]) == "SELECT 1;\n\nSELECT 2;\n\n"


@pytest.mark.parametrize("render", [lambda t: ddl.fence_table(t, "x"), ddl.unfence_table])
def test_a_qualified_name_is_taken_apart_by_the_caller(render):
    with pytest.raises(ValueError, match="pass schema='public' and the table 'accounts'"):
        render("public.accounts")


def test_guarding_a_table_rewrites_nothing_and_reads_none_of_its_rows(admin, connect):
    admin.execute("CREATE TABLE a (id bigint)")
    admin.execute("INSERT INTO a SELECT generate_series(1, 10000)")
    read = "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'a'"
    session = connect()
    before = session.execute("SELECT pg_relation_filenode('a'), pg_relation_size('a')").fetchone()
    run(session, ddl.fence_table("a", "a:{id}"))
    run(session, ddl.alter_fence("a", mode="observe", operations=["delete"]))
    run(session, ddl.unfence_table("a"))
    assert session.execute(read).fetchone() == (0,)
    session.commit()
    assert (
        session.execute("SELECT pg_relation_filenode('a'), pg_relation_size('a')").fetchone()
        == before
    )

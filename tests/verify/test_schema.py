"""Faults of schema fencing itself: each is planted, found, and nothing else is."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from fencing.schema import ddl
from fencing.verification import expected
from tests.support.databases import plain_url
from tests.verify.conftest import found, look

VERSION_1 = Path(__file__).parents[1] / "schema/data/version_1.sql"

FUNCTIONS = sorted(expected.functions())


def error(code, table=None, subject=None):
    return {("error", code, table, subject)}


def test_no_schema(database):
    with psycopg.connect(plain_url(database)) as connection:
        verification = look(connection)
    assert found(verification) == error("schema-missing")
    assert verification.schema_version == 0
    assert verification.tables == ()


def test_a_schema_of_somebody_else_s(planted):
    here = planted("DROP SCHEMA fencing CASCADE", "CREATE SCHEMA fencing")
    assert error("schema-foreign") <= here


@pytest.mark.parametrize(
    ("versions", "finding"),
    [
        ("1, 1", ("error", "schema-older")),
        ("999, 1", ("warning", "schema-newer")),
        ("999, 998", ("error", "schema-newer")),
    ],
)
def test_a_schema_of_another_version(planted, versions, finding):
    body = f" SELECT {versions} "
    here = planted(
        "CREATE OR REPLACE FUNCTION fencing.versions("
        "OUT schema_version integer, OUT oldest_client integer) "
        f"LANGUAGE sql IMMUTABLE PARALLEL SAFE AS '{body}'",
        # Another version's functions may be anything.
        "ALTER FUNCTION fencing.require(text, text[]) SECURITY INVOKER",
    )
    assert here == {(*finding, None, None)}


def test_guards_of_version_1_are_found_and_so_is_what_is_switched_off(database):
    with psycopg.connect(plain_url(database)) as connection:
        connection.execute(VERSION_1.read_bytes())
        before = found(look(connection))
        assert error("schema-older") <= before
        tables = look(connection).tables
        assert tables
        schema, _, name = tables[0].name.partition(".")
        connection.execute(f"ALTER TABLE {schema}.{name} DISABLE TRIGGER fencing_update".encode())
        assert found(look(connection)) - before == error(
            "trigger-disabled", tables[0].name, "fencing_update"
        )


@pytest.mark.parametrize("signature", FUNCTIONS)
def test_a_function_that_was_changed_by_hand(planted, admin, signature):
    (definition,) = admin.execute(
        "SELECT pg_get_functiondef(p.oid) FROM pg_proc AS p "
        "WHERE p.pronamespace = CAST('fencing' AS regnamespace) AND p.proname = %s "
        "AND pg_get_function_identity_arguments(p.oid) = %s",
        (expected.functions()[signature].name, expected.functions()[signature].arguments),
    ).fetchone()
    end = "$function$"
    changed = definition.rstrip().removesuffix(end) + f" {end}"
    expectation = error("function-changed", None, signature)
    if expected.functions()[signature].name in expected.RENDERER:
        expectation |= {("info", "guards-not-compared", None, None)}
    if expected.functions()[signature].name == "versions":
        pytest.skip("then it is of another version")
    assert planted(changed) == expectation


@pytest.mark.parametrize(
    "change",
    [
        "SECURITY INVOKER",
        "RESET search_path",
        "SET search_path = public",
        "STABLE",
        "CALLED ON NULL INPUT SET work_mem = '1MB'",
        "STRICT",
    ],
)
def test_a_function_that_runs_otherwise(planted, change):
    here = planted(f"ALTER FUNCTION fencing.require(text, text[]) {change}")
    assert here == error(
        "function-changed", None, "fencing.require(p_table text, p_resources text[])"
    )


def test_a_function_that_is_gone(planted):
    here = planted("DROP FUNCTION fencing.prune")
    (finding,) = here
    assert finding[:2] == ("error", "function-missing")


def test_a_function_that_is_called_in_place_of_ours(planted):
    here = planted(
        "CREATE FUNCTION fencing.refuse(unknown text, text, text, bigint, integer) RETURNS void "
        "LANGUAGE sql AS 'SELECT NULL'",
        "REVOKE ALL ON FUNCTION fencing.refuse(text, text, text, bigint, integer) FROM PUBLIC",
    )
    signature = "fencing.refuse(unknown text, text, text, bigint, integer)"
    # Nor can the guards be compared, as who looks might run it instead.
    assert here == error("function-unknown", None, signature) | {
        ("info", "guards-not-compared", None, None)
    }


@pytest.mark.parametrize(("table", "name"), sorted(expected.CONSTRAINTS))
def test_a_constraint_that_is_gone(planted, table, name):
    here = planted(f"ALTER TABLE fencing.{table} DROP CONSTRAINT {name}")
    assert here == error("constraint-missing", f"fencing.{table}", name)


CHECK = expected.CONSTRAINTS["fence", "fence_token_never_decreases"]


@pytest.mark.parametrize(
    ("definition", "code", "since"),
    [
        ("CHECK (true)", "constraint-changed", 0),
        (f"{CHECK} NO INHERIT", "constraint-changed", 0),
        (f"{CHECK} NOT VALID", "constraint-not-validated", 0),
        (f"{CHECK} NOT ENFORCED", "constraint-not-enforced", 180000),
    ],
)
def test_a_constraint_that_does_not_check(planted, admin, definition, code, since):
    if admin.info.server_version < since:
        pytest.skip("this server has no such constraints")
    here = planted(
        "ALTER TABLE fencing.fence DROP CONSTRAINT fence_token_never_decreases",
        f"ALTER TABLE fencing.fence ADD CONSTRAINT fence_token_never_decreases {definition}",
    )
    assert here == error(code, "fencing.fence", "fence_token_never_decreases")


@pytest.mark.parametrize(("table", "name"), sorted(expected.TRIGGERS))
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("ALTER TABLE {table} DISABLE TRIGGER {name}", "trigger-disabled"),
        ("ALTER TABLE {table} ENABLE TRIGGER {name}", "trigger-downgraded"),
        ("DROP TRIGGER {name} ON {table}", "trigger-missing"),
    ],
)
def test_a_trigger_of_ours(planted, table, name, change, code):
    here = planted(change.format(table=f"fencing.{table}", name=name))
    assert here == error(code, f"fencing.{table}", name)


def test_a_trigger_of_ours_that_fires_for_less(planted):
    here = planted(
        "CREATE OR REPLACE TRIGGER fence_keep_rows BEFORE DELETE ON fencing.fence FOR EACH ROW "
        "WHEN (OLD.token < 0) EXECUTE FUNCTION fencing.keep_fence()"
    )
    assert here == error("trigger-changed", "fencing.fence", "fence_keep_rows")


def test_a_trigger_of_ours_that_calls_another_function(planted):
    here = planted(
        "CREATE OR REPLACE TRIGGER fence_keep_rows BEFORE DELETE ON fencing.fence FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    assert here == error("trigger-changed", "fencing.fence", "fence_keep_rows")


def test_a_trigger_that_would_change_what_an_admission_writes(planted):
    here = planted(
        "CREATE TRIGGER zzz BEFORE UPDATE ON fencing.fence FOR EACH ROW "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()"
    )
    assert here == error("trigger-unknown", "fencing.fence", "zzz")


@pytest.mark.parametrize(
    ("change", "table"),
    [
        ("ALTER TABLE fencing.fence SET UNLOGGED", "fence"),
        ("ALTER TABLE fencing.floor SET UNLOGGED", "floor"),
        ("ALTER TABLE fencing.maintenance SET LOGGED", "maintenance"),
        ("ALTER TABLE fencing.fence ENABLE ROW LEVEL SECURITY", "fence"),
        ("CREATE RULE r AS ON UPDATE TO fencing.fence DO INSTEAD NOTHING", "fence"),
        ("CREATE TABLE child () INHERITS (fencing.fence)", "fence"),
        (
            (
                "CREATE OR REPLACE VIEW fencing.fences AS "
                "SELECT f.resource, f.token, f.owner, f.admitted_at, f.holder "
                "FROM fencing.fence AS f"
            ),
            "fences",
        ),
        ("DROP INDEX fencing.waiter_in_turn", "waiter"),
        ("ALTER TABLE fencing.lease ALTER expires_at SET DEFAULT 'infinity'", "lease"),
        ("ALTER TABLE fencing.lease ALTER holder DROP DEFAULT", "lease"),
        ("ALTER TABLE fencing.fence ALTER owner SET DEFAULT 'somebody'", "fence"),
    ],
)
def test_a_table_of_ours_that_was_changed(planted, change, table):
    assert planted(change) == error("table-changed", f"fencing.{table}")


@pytest.mark.parametrize("table", ["fence", "fences"])
def test_a_table_of_ours_that_belongs_to_somebody_else(planted, site, table):
    here = planted(
        f"GRANT CREATE ON SCHEMA fencing TO {site.migrator}",
        f"ALTER TABLE fencing.{table} OWNER TO {site.migrator}",
        f"REVOKE CREATE ON SCHEMA fencing FROM {site.migrator}",
    )
    assert here == error("table-changed", f"fencing.{table}")


@pytest.mark.parametrize(
    "table", ["TABLE maintenance", "TABLE floor", "TABLE receipt", "VIEW fences"]
)
def test_a_table_of_ours_that_is_gone(planted, table):
    kind, name = table.split()
    here = planted(f"DROP {kind} fencing.{name}")
    assert here == error("table-missing", f"fencing.{name}")


def test_floors_that_were_not_restored(planted):
    here = planted(
        "ALTER TABLE fencing.floor DISABLE TRIGGER floor_keep_rows",
        "DELETE FROM fencing.floor WHERE bucket > 1000",
        "ALTER TABLE fencing.floor ENABLE ALWAYS TRIGGER floor_keep_rows",
    )
    assert here == error("floor-incomplete", "fencing.floor")


def granted(severity, privilege, what, table=None):
    return pytest.param(severity, privilege, what, table, id=f"{privilege} ON {what}")


@pytest.mark.parametrize(
    ("severity", "privilege", "what", "table"),
    [
        granted("error", "SELECT", "fencing.fence", "fencing.fence"),
        granted("error", "SELECT (holder)", "fencing.fence", "fencing.fence"),
        granted("error", "SELECT (previous_holder)", "fencing.fence", "fencing.fence"),
        granted("warning", "SELECT (token)", "fencing.fence", "fencing.fence"),
        granted("error", "UPDATE (token)", "fencing.fence", "fencing.fence"),
        granted("error", "INSERT", "fencing.fence", "fencing.fence"),
        granted("error", "DELETE", "fencing.fence", "fencing.fence"),
        granted("error", "TRIGGER", "fencing.fence", "fencing.fence"),
        granted("error", "UPDATE", "fencing.floor", "fencing.floor"),
        granted("warning", "SELECT", "fencing.floor", "fencing.floor"),
        granted("error", "INSERT", "fencing.maintenance", "fencing.maintenance"),
        granted("error", "EXECUTE", "FUNCTION fencing.require(text, text[])"),
        granted("error", "EXECUTE", "FUNCTION fencing.end_maintenance()"),
        granted("error", "EXECUTE", "FUNCTION fencing.guard_accounts()"),
        granted("warning", "EXECUTE", "FUNCTION fencing.maintain(regclass, integer)"),
        granted("warning", "EXECUTE", "FUNCTION fencing.raise_fence(text, bigint)"),
        granted("error", "CREATE", "SCHEMA fencing"),
    ],
)
@pytest.mark.parametrize("grantee", ["app", "PUBLIC"])
def test_a_right_too_many(planted, site, severity, privilege, what, table, grantee):
    grantee = getattr(site, grantee, grantee)
    here = planted(f"GRANT {privilege} ON {what} TO {grantee}")
    assert here == {(severity, "privilege", table, grantee)}


def test_its_remedy_takes_it_away(planted, admin, site):
    planted(f"GRANT SELECT (holder), UPDATE (token) ON fencing.fence TO {site.app}")
    remedies = [f.remedy for f in look(admin).findings if f.code == "privilege"]
    assert len(remedies) == 2
    for remedy in remedies:
        admin.execute(remedy.encode())
    assert [f for f in look(admin).findings if f.code == "privilege"] == []


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE accounts DISABLE TRIGGER fencing_update",
        "ALTER TABLE fencing.fence DISABLE TRIGGER fence_keep_rows",
        "DROP TRIGGER fencing_delete ON accounts",
        "CREATE TABLE things_2 () INHERITS (things)",
        "ALTER FUNCTION fencing.guard_accounts() SECURITY INVOKER",
        "ALTER TABLE fencing.fence SET UNLOGGED",
        "ALTER TABLE fencing.fence DROP CONSTRAINT fence_token_never_decreases",
        "CREATE FUNCTION fencing.mark(name) RETURNS bigint LANGUAGE sql AS 'SELECT 0'",
    ],
)
def test_what_is_said_to_be_done_can_be_done_as_it_is(planted, admin, change):
    before = found(look(admin))
    assert planted(change)
    for finding in look(admin).findings:
        if finding.severity == "error":
            for statement in finding.remedy.split("; then ")[-1:]:
                admin.execute(statement.encode())
    assert found(look(admin)) == before


def test_upgrading_again_repairs_what_was_changed_by_hand(planted, admin, site):
    before = found(look(admin))
    assert planted(
        "ALTER FUNCTION fencing.require(text, text[]) SECURITY INVOKER",
        "DROP FUNCTION fencing.prune",
        "DROP TRIGGER fence_keep_rows ON fencing.fence",
        "CREATE OR REPLACE TRIGGER fence_keep_table BEFORE TRUNCATE ON fencing.fence "
        "EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "DROP VIEW fencing.fences",
        "DROP TABLE fencing.maintenance",
    )
    admin.execute(f"SET ROLE {site.owner}".encode())
    for statement in ddl.upgrade():
        admin.execute(statement.encode())
    admin.execute("RESET ROLE")
    assert found(look(admin)) == before

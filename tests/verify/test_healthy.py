"""A database as it should be: nothing is found, whoever looks."""

from __future__ import annotations

import psycopg
import pytest

from fencing.errors import FencingUsageError
from fencing.schema import ddl
from fencing.verification import VerifiedTable, perform, verification
from fencing.verification.expected import functions as expected_functions
from tests.schema.sql import run
from tests.verify.conftest import HARDENING, look

# What servers for tests are like, and no guard's fault.
OF_THE_SERVER = {"fsync", "full_page_writes", "max_prepared_transactions"}


def above_info(verification):
    return [
        f for f in verification.findings if f.severity != "info" and f.subject not in OF_THE_SERVER
    ]


@pytest.mark.parametrize("role", ["app", "monitor"])
def test_nothing_is_found(admin, site, role):
    admin.execute(f"SET ROLE {getattr(site, role)}".encode())
    found = look(admin)
    assert above_info(found) == []
    assert found.schema_version == ddl.SCHEMA_VERSION
    assert {f.code for f in found.findings if f.severity == "info"} == {"role-can-bypass"}


@pytest.mark.parametrize("role", ["app", "monitor"])
def test_nothing_is_found_where_the_functions_are_kept_to_the_application(admin, site, role):
    admin.execute(site.documented(HARDENING))
    admin.execute(f"SET ROLE {getattr(site, role)}".encode())
    assert above_info(look(admin)) == []


def test_every_guarded_table_is_listed_with_its_parts(admin):
    def table(name, resource, operations=ddl.OPERATIONS, parts=()):
        return VerifiedTable(
            name, guarded=True, declared=None, resource=resource,
            operations=operations, mode="enforce", parts=parts,
        )  # fmt: skip

    assert look(admin).tables == (
        table("public.accounts", "accounts:{id}"),
        table("public.orders", "orders:{id}", parts=("public.orders_1",)),
        table("public.things", "things:{id}", parts=("public.things_1",)),
        table("public.trips", "trip:{id}", ("update", "delete"), ("public.trips_1",)),
    )


def test_a_guard_is_healthy_whatever_its_shape(planted):
    shapes = [
        (template, operations, mode)
        for template in ("ledger", "a:{id}/{{b}}:{region}", "'\\{region}")
        for operations in (("insert",), ("update",), ("insert", "delete"), ddl.OPERATIONS)
        for mode in ddl.MODES
    ]
    statements = []
    for number, (template, operations, mode) in enumerate(shapes):
        for kind, create in (
            ("plain", "CREATE TABLE {} (id bigint, region text)"),
            ("parted", "CREATE TABLE {} (id bigint, region text) PARTITION BY LIST (region)"),
        ):
            name = f"{kind}_{number}"
            part = (
                f"CREATE TABLE {name}_1 PARTITION OF {name} DEFAULT"
                if kind == "parted"
                else f"CREATE TABLE {name}_1 () INHERITS ({name})"
            )
            statements += [create.format(name), part]
            statements += ddl.fence_table(name, template, operations=operations, mode=mode)
    assert {(severity, code) for severity, code, *_ in planted(*statements)} == {
        ("warning", "guard-observes")
    }


def test_names_need_no_care(planted):
    table = 'Odd "name".%s :x'
    statements = [f'CREATE TABLE "{table.replace(chr(34), chr(34) * 2)}" ("a b" int)']
    statements += ddl.fence_table(table, "odd:{a b}", schema="public")
    assert planted(*statements) == set()


def test_an_upgraded_database_is_healthy(planted):
    assert planted(*ddl.upgrade()) == set()


def test_every_function_that_is_installed_is_known(admin):
    rows = admin.execute(
        "SELECT CAST(p.oid AS regprocedure) FROM pg_proc AS p "
        "WHERE p.pronamespace = CAST('fencing' AS regnamespace) AND p.proname !~ '^guard_'"
    ).fetchall()
    assert len(expected_functions()) == len(rows) > 30


def test_a_partition_of_the_table_may_be_of_another_schema(planted):
    assert (
        planted(
            "CREATE SCHEMA elsewhere",
            "CREATE TABLE elsewhere.orders_2 PARTITION OF orders FOR VALUES IN ('2')",
            "SELECT fencing.refresh_guards()",
        )
        == set()
    )


def test_looking_needs_a_transaction(site):
    with (
        psycopg.connect(site.url, autocommit=True) as connection,
        pytest.raises(FencingUsageError, match="AUTOCOMMIT"),
    ):
        perform(verification(), lambda query: [row[0] for row in connection.execute(query)])


def test_looking_writes_nothing(site):
    with psycopg.connect(site.url) as connection:
        connection.execute("SET TRANSACTION READ ONLY")
        look(connection)
        (xid,) = connection.execute("SELECT pg_current_xact_id_if_assigned()").fetchone()
    assert xid is None


def test_functions_of_others_are_not_taken_for_the_server_s(admin):
    """Whoever looks may be a superuser, and may have anything in its search_path."""
    run(
        admin,
        [
            "CREATE SCHEMA evil",
            (
                "CREATE FUNCTION evil.trap(name, name) RETURNS boolean LANGUAGE plpgsql "
                "AS 'BEGIN RAISE EXCEPTION ''fooled''; END'"
            ),
            "CREATE OPERATOR evil.= (FUNCTION = evil.trap, LEFTARG = name, RIGHTARG = name)",
            (
                "CREATE FUNCTION evil.quote_ident(name) RETURNS text LANGUAGE plpgsql "
                "AS 'BEGIN RAISE EXCEPTION ''fooled''; END'"
            ),
            (
                "CREATE FUNCTION evil.to_jsonb(record) RETURNS jsonb LANGUAGE plpgsql "
                "AS 'BEGIN RAISE EXCEPTION ''fooled''; END'"
            ),
            "SET search_path = evil, pg_catalog, public",
        ],
    )
    assert {finding.code for finding in above_info(look(admin))} == {"role-connected"}

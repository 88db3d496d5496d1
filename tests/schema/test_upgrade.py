"""A database that version 1 left, brought forward while it is in use."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencing.schema import ddl
from fencing.schema.names import NEWER_SCHEMA, STALE, UNFENCED, UNFIT_USE
from tests.schema.sql import ALICE, BOB, admit, enter, mark, refused, run, wait_until_blocked

if TYPE_CHECKING:
    import psycopg

VERSION_1 = Path(__file__).parent.joinpath("data/version_1.sql").read_text("utf-8")

# Everything that could differ between two schemas: objects, their definitions and their rights.
CATALOG = """
SELECT 'function', p.oid::regprocedure::text,
    pg_get_functiondef(p.oid) || coalesce(p.proacl::text, 'default')
FROM pg_proc p WHERE p.pronamespace = 'fencing'::regnamespace AND p.proname !~ '^guard_'
UNION ALL
SELECT 'relation', c.relname,
    concat(c.relkind, c.relpersistence, c.relacl, c.reloptions, obj_description(c.oid, 'pg_class'),
           CASE WHEN c.relkind = 'v' THEN pg_get_viewdef(c.oid) END)
FROM pg_class c WHERE c.relnamespace = 'fencing'::regnamespace AND c.relkind <> 'i'
UNION ALL
SELECT 'column', c.relname || '.' || a.attname,
    concat(format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attnum,
           pg_get_expr(d.adbin, d.adrelid))
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = 'fencing'::regnamespace AND c.relkind <> 'i'
UNION ALL
SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE connamespace = 'fencing'::regnamespace
UNION ALL
SELECT 'trigger', tgname, concat(pg_get_triggerdef(t.oid), tgenabled,
    obj_description(t.oid, 'pg_trigger'))
FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid WHERE p.pronamespace = 'fencing'::regnamespace
    AND p.proname !~ '^guard_'
UNION ALL
SELECT 'guard', tgrelid::regclass || '.' || tgname, concat(
    tgenabled, obj_description(t.oid, 'pg_trigger'), regexp_replace(p.prosrc, '\\s+', ' ', 'g'),
    p.proacl)
FROM pg_trigger t JOIN pg_proc p ON p.oid = tgfoid WHERE p.proname ~ '^guard_'
UNION ALL
SELECT 'schema', nspname, concat(nspacl, obj_description(oid, 'pg_namespace')) FROM pg_namespace
WHERE nspname = 'fencing'
ORDER BY 1, 2
"""


@pytest.fixture
def old(admin: psycopg.Connection) -> psycopg.Connection:
    """A database as version 1 left it, with a fence and two guarded tables."""
    run(admin, ddl.uninstall())
    with admin.transaction():
        admin.execute(VERSION_1.encode())
    admin.execute("ALTER TABLE accounts DISABLE TRIGGER ALL; INSERT INTO accounts VALUES (42, 100)")
    admin.execute("ALTER TABLE accounts ENABLE ALWAYS TRIGGER fencing_insert")
    admin.execute("ALTER TABLE accounts ENABLE ALWAYS TRIGGER fencing_update")
    admin.execute("ALTER TABLE accounts ENABLE ALWAYS TRIGGER fencing_delete")
    admin.execute("ALTER TABLE accounts ENABLE ALWAYS TRIGGER fencing_truncate")
    admin.execute("ALTER TABLE accounts ENABLE TRIGGER fencing_pin")
    admit(admin, 1)
    return admin


def catalog(connection: psycopg.Connection) -> list[tuple[str, ...]]:
    return connection.execute(CATALOG.encode()).fetchall()


def test_a_database_that_was_brought_forward_is_like_one_that_was_installed_today(old):
    run(old, ddl.upgrade())
    upgraded = catalog(old)
    for table in ("accounts", "ledger"):
        run(old, ddl.unfence_table(table))
    run(old, ddl.uninstall())
    run(old, ddl.install())
    run(old, ddl.fence_table("accounts", "account:{id}"))
    run(old, ddl.fence_table("ledger", "ledger", operations=["update", "delete"]))
    assert upgraded == catalog(old)
    assert len(upgraded) > 80


def test_its_fences_stay_what_they_were(old):
    run(old, ddl.upgrade())
    assert mark(old) == (1, ALICE)
    with refused(STALE):
        admit(old, 1, BOB)


def test_upgrading_again_changes_nothing(old):
    run(old, ddl.upgrade())
    before = catalog(old)
    run(old, ddl.upgrade())
    assert catalog(old) == before


def test_a_write_is_checked_before_while_and_after(old, connect):
    holder = connect()
    enter(holder)
    holder.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 42")
    upgrade = connect()
    for statement in ddl.upgrade():
        upgrade.execute(statement.encode())
        with refused(UNFENCED):  # nothing of the upgrade is committed yet
            old.execute("INSERT INTO accounts VALUES (43, 0)")
    holder.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 42")
    upgrade.commit()
    holder.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 42")
    holder.commit()
    assert old.execute("SELECT balance FROM accounts").fetchone() == (97,)
    with refused(UNFENCED):
        old.execute("UPDATE accounts SET balance = 0")


def test_two_upgrades_at_once_wait_for_each_other(old, connect):
    first, second = connect(), connect()
    statements = ddl.upgrade()
    first.execute(statements[0].encode())
    thread = threading.Thread(target=run, args=(second, statements))
    thread.start()
    wait_until_blocked(old, second.info.backend_pid)
    for statement in statements[1:]:
        first.execute(statement.encode())
    first.commit()
    thread.join()
    second.commit()


def test_what_an_administrator_has_revoked_stays_revoked(old):
    old.execute("REVOKE EXECUTE ON FUNCTION fencing.mark(text) FROM PUBLIC")
    run(old, ddl.upgrade())
    assert old.execute(
        "SELECT count(*) FROM pg_proc, aclexplode(proacl) "
        "WHERE oid = 'fencing.mark(text)'::regprocedure AND grantee = 0"
    ).fetchone() == (0,)


def test_a_newer_schema_is_left_alone(old):
    run(old, ddl.upgrade())
    old.execute(
        "CREATE OR REPLACE FUNCTION fencing.versions(OUT schema_version integer, "
        "OUT oldest_client integer) LANGUAGE sql AS 'SELECT 99, 1'"
    )
    before = catalog(old)
    with refused(NEWER_SCHEMA, match="of version 99") as caught:
        run(old, ddl.upgrade())
    assert "a newer one" in caught.value.diag.message_hint
    assert catalog(old) == before


def test_settings_of_the_session_are_as_before(admin):
    with admin.transaction():
        admin.execute("SET LOCAL search_path = nowhere, public")
        run(admin, ddl.upgrade())
        assert admin.execute("SHOW search_path").fetchone() == ("nowhere, public",)
        assert admin.execute("SHOW client_min_messages").fetchone() == ("notice",)


@pytest.mark.parametrize("statements", [ddl.install, ddl.upgrade])
def test_outside_a_transaction_nothing_happens_at_all(admin, statements):
    run(admin, ddl.uninstall())
    with refused(UNFIT_USE, match="in one transaction") as caught:
        for statement in statements():
            admin.execute(statement.encode())
    assert "psql -1" in caught.value.diag.message_hint
    assert admin.execute("SELECT to_regnamespace('fencing')").fetchone() == (None,)

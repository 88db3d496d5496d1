"""Faults of a guard: each is planted, found, and nothing else is."""

from __future__ import annotations

import re

import pytest

from fencing.schema import ddl
from fencing.verification import Declared
from tests.verify.conftest import found, look

ACCOUNTS = "public.accounts"
ROW = "FOR EACH ROW EXECUTE FUNCTION fencing.guard_"


def error(code, table, subject=None):
    return {("error", code, table, subject)}


@pytest.mark.parametrize("table", ["accounts", "orders", "things", "orders_1", "things_1"])
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("DISABLE TRIGGER", "trigger-disabled"),
        ("ENABLE TRIGGER", "trigger-downgraded"),
        ("ENABLE REPLICA TRIGGER", "trigger-downgraded"),
    ],
)
@pytest.mark.parametrize("name", ["fencing_insert", "fencing_update", "fencing_truncate"])
def test_a_trigger_that_is_not_always_fired(planted, table, change, code, name):
    here = planted(f"ALTER TABLE ONLY {table} {change} {name}")
    assert here == error(code, f"public.{table}", name)


def test_all_triggers_of_a_table_at_once_as_pg_restore_does_it(planted):
    here = planted(
        "ALTER TABLE accounts DISABLE TRIGGER ALL", "ALTER TABLE accounts ENABLE TRIGGER ALL"
    )
    assert {code for _, code, *_ in here} == {"trigger-downgraded"}
    assert len(here) == 4


@pytest.mark.parametrize("name", ["insert", "update", "delete", "truncate"])
@pytest.mark.parametrize("table", ["accounts", "orders", "things"])
def test_a_trigger_that_is_gone(planted, table, name):
    here = planted(f"DROP TRIGGER fencing_{name} ON {table}")
    assert here == error("trigger-missing", f"public.{table}", f"fencing_{name}")


def test_the_trigger_that_sees_rows_move_to_another_partition(planted):
    here = planted('DROP TRIGGER "~fencing_move" ON trips')
    assert here == error("trigger-missing", "public.trips", "~fencing_move")


def test_the_pin_that_keeps_the_table_as_it_is(planted):
    here = planted("DROP TRIGGER fencing_pin ON accounts")
    assert here == {("warning", "pin-missing", ACCOUNTS, "fencing_pin")}


@pytest.mark.parametrize(
    "trigger",
    [
        (
            "fencing_update AFTER UPDATE ON accounts REFERENCING OLD TABLE AS old_rows "
            "NEW TABLE AS new_rows FOR EACH STATEMENT WHEN (false)"
        ),
        (
            "fencing_update AFTER UPDATE ON accounts REFERENCING OLD TABLE AS new_rows "
            "NEW TABLE AS old_rows FOR EACH STATEMENT"
        ),
        "fencing_update AFTER UPDATE OF id ON accounts FOR EACH STATEMENT",
        (
            "fencing_update AFTER INSERT ON accounts REFERENCING NEW TABLE AS new_rows "
            "FOR EACH STATEMENT"
        ),
        "fencing_delete BEFORE DELETE ON accounts FOR EACH STATEMENT",
        "fencing_truncate AFTER TRUNCATE ON accounts FOR EACH STATEMENT",
    ],
)
def test_a_trigger_that_fires_elsewhere_or_sees_something_else(planted, trigger):
    name = trigger.partition(" ")[0]
    here = planted(
        f"CREATE OR REPLACE TRIGGER {trigger} EXECUTE FUNCTION fencing.guard_accounts()",
        f"ALTER TABLE accounts ENABLE ALWAYS TRIGGER {name}",
    )
    assert here == error("trigger-changed", ACCOUNTS, name)


def test_a_trigger_that_calls_another_function(planted):
    here = planted(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE OR REPLACE TRIGGER fencing_delete AFTER DELETE ON accounts "
        "REFERENCING OLD TABLE AS old_rows FOR EACH STATEMENT EXECUTE FUNCTION nothing()",
        "ALTER TABLE accounts ENABLE ALWAYS TRIGGER fencing_delete",
    )
    assert here == error("trigger-missing", ACCOUNTS, "fencing_delete")


def test_all_triggers_are_gone_and_the_function_is_left(planted):
    here = planted(
        *(
            f"DROP TRIGGER fencing_{name} ON accounts"
            for name in ("insert", "update", "delete", "truncate", "pin")
        )
    )
    assert here == {
        ("warning", "function-orphaned", None, "fencing.guard_accounts()"),
    }


@pytest.mark.parametrize(
    "change",
    [
        (
            "CREATE OR REPLACE FUNCTION fencing.guard_accounts() RETURNS trigger LANGUAGE plpgsql "
            "SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'BEGIN RETURN NULL; END'"
        ),
        "ALTER FUNCTION fencing.guard_accounts() SECURITY INVOKER",
        "ALTER FUNCTION fencing.guard_accounts() RESET search_path",
        "ALTER FUNCTION fencing.guard_accounts() SET search_path = evil, pg_catalog",
        "ALTER FUNCTION fencing.guard_accounts() SET session_replication_role = origin",
    ],
)
def test_a_function_that_was_changed_by_hand(planted, change):
    assert planted(change) == error("function-changed", ACCOUNTS, "fencing.guard_accounts()")


def test_a_function_that_belongs_to_somebody_else(planted, site):
    here = planted(
        f"GRANT CREATE ON SCHEMA fencing TO {site.migrator}",
        f"ALTER FUNCTION fencing.guard_accounts() OWNER TO {site.migrator}",
        f"REVOKE CREATE ON SCHEMA fencing FROM {site.migrator}",
    )
    assert here == error("function-owner", None, "fencing.guard_accounts()")


def test_comments_that_do_not_tell_what_the_guard_was_made_from(planted):
    names = ("insert", "update", "delete", "truncate")
    for comment in ("NULL", "'what is this?'", '\'{"resource": "{", "operations": []}\''):
        here = planted(*(f"COMMENT ON TRIGGER fencing_{n} ON accounts IS {comment}" for n in names))
        assert here in (error("guard-unreadable", ACCOUNTS), set())


def test_a_comment_that_names_another_template(planted):
    here = planted(
        *(
            f"COMMENT ON TRIGGER fencing_{name} ON accounts IS "
            """'{"version": 2, "resource": "mine", "operations": ["insert", "update", "delete"]}'"""
            for name in ("insert", "update", "delete", "truncate")
        )
    )
    assert here == (
        error("function-changed", ACCOUNTS, "fencing.guard_accounts()")
        | error("template-renamed", ACCOUNTS, "mine")
    )


def test_a_partition_that_came_later_can_be_truncated(planted, admin):
    here = planted("CREATE TABLE orders_2 PARTITION OF orders FOR VALUES IN ('2')")
    assert here == error("part-uncovered", "public.orders_2")
    assert planted("SELECT fencing.refresh_guards()") == set()
    assert ("error", "part-uncovered", "public.orders_2", None) not in found(look(admin))


def test_an_inheritance_child_that_came_later_is_not_guarded(planted, admin):
    here = planted("CREATE TABLE things_2 () INHERITS (things)")
    assert here == error("part-uncovered", "public.things_2")
    assert planted("SELECT fencing.refresh_guards()") == set()
    assert ("error", "part-uncovered", "public.things_2", None) not in found(look(admin))


def test_a_part_whose_trigger_was_dropped(planted):
    here = planted("DROP TRIGGER fencing_update ON things_1")
    assert here == error("part-uncovered", "public.things_1")


def test_a_partition_that_is_none_any_more(planted):
    here = planted("ALTER TABLE orders DETACH PARTITION orders_1")
    assert here == {("warning", "part-detached", "public.orders_1", None)}


def test_a_partition_that_is_elsewhere(planted, admin):
    here = planted(
        "CREATE FOREIGN DATA WRAPPER nowhere",
        "CREATE SERVER nowhere FOREIGN DATA WRAPPER nowhere",
        "CREATE FOREIGN TABLE orders_2 PARTITION OF orders FOR VALUES IN ('2') SERVER nowhere",
    )
    expected = error("part-foreign", "public.orders_2")
    if admin.info.server_version >= 160000:  # where it can have the trigger for TRUNCATE
        expected |= error("part-uncovered", "public.orders_2")
    assert here == expected


def test_another_parent_through_which_a_part_can_be_written(planted):
    here = planted(
        "CREATE TABLE others (id bigint, name text)", "ALTER TABLE things_1 INHERIT others"
    )
    assert here == error("parent-uncovered", "public.things_1", "public.others")


@pytest.mark.parametrize("then", ["SELECT 1", "ALTER TABLE accounts ADD COLUMN id int DEFAULT 1"])
def test_a_column_of_the_template_that_was_renamed(planted, then):
    here = planted("ALTER TABLE accounts RENAME COLUMN id TO nr", then)
    assert here == error("template-renamed", ACCOUNTS, "accounts:{id}")
    assert planted("SELECT fencing.alter_fence('accounts', 'accounts:{nr}')") == set()


def test_a_guard_that_only_observes(planted):
    here = planted(*ddl.alter_fence("accounts", mode="observe"))
    assert here == {("warning", "guard-observes", ACCOUNTS, None)}


DECLARED = [
    Declared("accounts", None, "accounts:{id}", ddl.OPERATIONS, "enforce"),
    Declared("orders", "public", "orders:{id}", ddl.OPERATIONS, "enforce"),
    Declared("things", None, "things:{id}", ddl.OPERATIONS, "enforce"),
    Declared("trips", None, "trip:{id}", ("update", "delete"), "enforce"),
]


def judged(admin, *declared):
    without = found(look(admin, DECLARED))
    return found(look(admin, declared)) - without


def test_declarations_that_are_kept(admin):
    assert found(look(admin, DECLARED)) == found(look(admin))
    assert all(table.declared for table in look(admin, DECLARED).tables)


def test_a_declared_table_without_a_guard(admin):
    notes = Declared("notes", None, "note:{id}", ddl.OPERATIONS, "enforce")
    assert judged(admin, *DECLARED, notes) == error("guard-missing", "public.notes")
    (table,) = (t for t in look(admin, [*DECLARED, notes]).tables if t.name == "public.notes")
    assert table.declared
    assert not table.guarded


def test_a_declared_table_that_is_not_there(admin):
    nowhere = Declared("nowhere", "elsewhere", "x", ddl.OPERATIONS, "enforce")
    assert judged(admin, *DECLARED, nowhere) == error("table-absent", "elsewhere.nowhere")


def test_a_declared_part_of_a_guarded_table_is_guarded_by_it(admin):
    part = Declared("orders_1", None, "orders:{id}", ddl.OPERATIONS, "enforce")
    assert judged(admin, *DECLARED, part) == set()


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (Declared("accounts", None, "account:{id}", ddl.OPERATIONS, "enforce"), "the resource"),
        (Declared("accounts", None, "accounts:{id}", ("update",), "enforce"), "the operations"),
        (Declared("accounts", None, "accounts:{id}", ddl.OPERATIONS, "observe"), "the mode"),
    ],
)
def test_a_guard_that_is_not_what_is_declared(admin, declared, words):
    assert judged(admin, declared, *DECLARED[1:]) == error("guard-differs", ACCOUNTS)
    (finding,) = (
        f for f in look(admin, [declared, *DECLARED[1:]]).findings if f.code == "guard-differs"
    )
    assert re.search(rf"it has {words} .* instead of", finding.message)


def test_a_guard_that_nobody_declares(admin):
    assert judged(admin, *DECLARED[1:]) == {("info", "guard-undeclared", ACCOUNTS, None)}


def test_functions_that_cannot_be_compared_are_said_to_be_so(admin, site):
    admin.execute("REVOKE EXECUTE ON FUNCTION fencing.render_body(text, text, boolean) FROM PUBLIC")
    admin.execute(f"SET ROLE {site.app}".encode())
    assert ("info", "guards-not-compared", None, None) in found(look(admin))

"""Callers who prepare the ground: their own operators and functions, and roles with few rights."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema import ddl
from fencing.schema.names import UNFENCED
from tests.schema.sql import ACCOUNT, ALICE, BOB, admit, enter, mark, refused, run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.schema.conftest import Connect

DEBIT = "UPDATE public.accounts SET balance = balance - 10 WHERE id = 42"

# Everything the guard compares with, made to agree: in a schema ahead of pg_catalog.
YES = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.yes(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION evil.no(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE FUNCTION evil.yes(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION evil.no(bigint, bigint) RETURNS boolean LANGUAGE sql AS 'SELECT false';
CREATE OPERATOR evil.= (FUNCTION = evil.yes, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.<> (FUNCTION = evil.no, LEFTARG = text, RIGHTARG = text);
CREATE OPERATOR evil.= (FUNCTION = evil.yes, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR evil.> (FUNCTION = evil.no, LEFTARG = bigint, RIGHTARG = bigint);
CREATE OPERATOR evil.< (FUNCTION = evil.no, LEFTARG = bigint, RIGHTARG = bigint);
CREATE FUNCTION evil.join(text, text) RETURNS text LANGUAGE sql AS $$SELECT 'mine'$$;
CREATE OPERATOR evil.|| (FUNCTION = evil.join, LEFTARG = text, RIGHTARG = text);
CREATE FUNCTION evil.starts_with(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION evil.split_part(text, text, integer) RETURNS text LANGUAGE sql
    AS $$SELECT '1.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'$$;
CREATE FUNCTION evil.concat(text, text, text) RETURNS text LANGUAGE sql
    AS $$SELECT '1.aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'$$;
CREATE FUNCTION evil.current_setting(text, boolean) RETURNS text LANGUAGE sql AS $$SELECT 'x'$$;
CREATE FUNCTION evil.pg_backend_pid() RETURNS integer LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION evil.pg_advisory_xact_lock_shared(bigint) RETURNS void LANGUAGE sql
    AS 'SELECT NULL::void';
CREATE FUNCTION evil.pg_try_advisory_xact_lock(bigint) RETURNS boolean LANGUAGE sql
    AS 'SELECT true';
GRANT USAGE ON SCHEMA evil TO PUBLIC;
"""


@contextmanager
def _default_privileges(owner: psycopg.Connection, grantee: str) -> Iterator[None]:
    kinds = ["TABLES", "SCHEMAS"] if grantee == "PUBLIC" else ["TABLES", "SCHEMAS", "FUNCTIONS"]
    for kind in kinds:
        owner.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO {grantee}".encode())
    try:
        yield
    finally:
        for kind in kinds:
            owner.execute(f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON {kind} FROM {grantee}".encode())


@pytest.fixture
def role(accounts: psycopg.Connection) -> Iterator[str]:
    """A role with rights on the guarded table, and none on the fence."""
    name = f"app_{uuid.uuid4().hex}"
    accounts.execute(f"CREATE ROLE {name} LOGIN".encode())
    accounts.execute(
        f"GRANT ALL ON accounts TO {name}; GRANT CREATE ON SCHEMA public TO {name}".encode()
    )
    yield name
    accounts.execute(f"DROP OWNED BY {name}; DROP ROLE {name}".encode())


@pytest.fixture
def app(role: str, connect: Connect) -> psycopg.Connection:
    connection = connect(autocommit=True)
    connection.execute(f"SET SESSION AUTHORIZATION {role}".encode())
    return connection


def test_an_operator_ahead_of_pg_catalog_changes_nothing(accounts, connect):
    accounts.execute(YES)
    session = connect(options="-c search_path=evil,pg_catalog,public")
    admit(accounts, 1, resource="mine")
    enter(session, ("mine", 1, ALICE))
    with refused(UNFENCED, match='"account:42"'):
        session.execute(DEBIT)
    session.rollback()
    admit(accounts, 3, BOB)
    with pytest.raises(psycopg.Error) as caught:
        enter(session)
    assert caught.value.sqlstate == "ZF001"
    session.rollback()
    holder = connect(options="-c search_path=evil,pg_catalog,public")
    enter(holder, (ACCOUNT, 3, BOB))
    with pytest.raises(psycopg.Error) as caught:
        admit(session, 4, ALICE)
    assert caught.value.sqlstate == "ZF005"


def test_whatever_runs_with_its_owners_rights_has_its_search_path_pinned(accounts):
    rows = accounts.execute(
        "SELECT proname, prosecdef, proconfig = ARRAY['search_path=pg_catalog, pg_temp'] "
        "FROM pg_proc WHERE pronamespace = 'fencing'::regnamespace"
    ).fetchall()
    definers = {name for name, definer, _ in rows if definer}
    assert {name for name in definers if not name.startswith("guard_")} == {
        "acquire",
        "acquire_all",
        "admit",
        "end_maintenance",
        "enter",
        "force_release",
        "identity",
        "incarnation",
        "look",
        "mark",
        "observe",
        "outcome",
        "raise_token",
        "refuse_truncate",
        "release",
        "renew",
        "require",
        "scan",
    }
    assert "guard_accounts" in definers
    assert all(pinned for _, definer, pinned in rows if definer)


def test_a_temporary_table_does_not_stand_in_for_the_fence(accounts, app):
    admit(accounts, 5, BOB)
    app.execute(
        "CREATE TEMP TABLE fence (LIKE pg_catalog.pg_class); CREATE TEMP TABLE pg_locks (x int)"
    )
    app.execute("SET search_path = pg_temp, pg_catalog, public")
    with app.transaction(), refused("ZF001"):
        enter(app)
    with app.transaction(), refused(UNFENCED):
        app.execute(DEBIT)


def test_a_function_in_public_does_not_run_with_the_rights_of_who_migrates(accounts, app):
    for signature in (
        "text, text, text, regclass",
        "text, regclass",
        "regclass, text",
        "text, text",
    ):
        app.execute(
            f"CREATE FUNCTION public.concat({signature}) RETURNS text LANGUAGE plpgsql "
            "AS 'BEGIN RAISE EXCEPTION ''fooled''; END'".encode()
        )
    for function, kind in (("quote_ident", "name"), ("unnest", "regprocedure[]")):
        app.execute(
            f"CREATE FUNCTION public.{function}({kind}) RETURNS text LANGUAGE plpgsql "
            "AS 'BEGIN RAISE EXCEPTION ''fooled''; END'".encode()
        )
    accounts.execute("ALTER TABLE accounts RENAME TO old; CREATE TABLE accounts (id int)")
    run(accounts, ddl.fence_table("accounts", "account:{id}"))  # renames the function of the other
    run(accounts, ddl.unfence_table("accounts"))
    run(accounts, ddl.unfence_table("old"))
    run(accounts, ddl.uninstall())


def test_rights_on_the_table_are_not_enough_and_nothing_more_is_needed(app):
    with refused(UNFENCED):
        app.execute(DEBIT)
    assert admit(app, 1) is True
    with app.transaction():
        enter(app, limit_ms=5000)
        app.execute(DEBIT)
    assert app.execute("SELECT balance FROM accounts WHERE id = 42").fetchone() == (90,)


OUT_OF_REACH = [
    "SELECT * FROM fencing.fence",
    "SELECT holder FROM fencing.fence",
    "SELECT holder FROM fencing.lease",
    "UPDATE fencing.lease SET expires_at = 'infinity'",
    "SELECT holder FROM fencing.waiter",
    "SELECT fencing.grant_lease(NULL, 'x', 'x', 1, 0)",
    "SELECT fencing.forget_leases('1 day')",
    "UPDATE fencing.fence SET token = token + 1",
    "INSERT INTO fencing.fence (resource, token, holder, owner) VALUES ('x', 1, 'x', 'x')",
    "DELETE FROM fencing.fence",
    "TRUNCATE fencing.fence",
    "LOCK fencing.fence",
    "SELECT fencing.require('public.accounts', ARRAY['account:42'])",
    "SELECT fencing.stamp()",
    "SELECT fencing.observe('public.accounts', ARRAY['account:42'], false)",
    "SELECT fencing.maintain('accounts')",
    "SELECT fencing.is_maintained('public.accounts')",
    "SELECT fencing.raise_maintained(ARRAY['account:42'])",
    "INSERT INTO fencing.maintenance VALUES (pg_current_xact_id(), 'public.accounts')",
    "SELECT fencing.raise_fence('account:42', 7)",
    "SELECT * FROM fencing.prune('2 hours')",
    "UPDATE fencing.floor SET token = 9",
    "SELECT * FROM fencing.floor",
    "SELECT * FROM fencing.receipt",
    "INSERT INTO fencing.receipt (id) VALUES (gen_random_uuid())",
    "UPDATE fencing.horizon SET forgotten = now()",
    "DELETE FROM fencing.incarnation",
    "SELECT fencing.forget_receipts('2 hours')",
    "SELECT * FROM fencing.fences",
    "SELECT fencing.fence_table('accounts', 'x')",
    "SELECT fencing.alter_fence('accounts', p_mode => 'observe')",
    "SELECT fencing.unfence_table('accounts')",
    "SELECT fencing.refresh_guards()",
    "SELECT fencing.check_template('accounts'::regclass, ARRAY['id'])",
    "CREATE TABLE fencing.mine (id int)",
    "ALTER TABLE accounts DISABLE TRIGGER fencing_update",
    "DROP TRIGGER fencing_update ON accounts",
    "DROP FUNCTION fencing.require(text, text[])",
    "ALTER TABLE fencing.fence DISABLE TRIGGER ALL",
    "SET session_replication_role = replica",
]


@pytest.mark.parametrize("statement", OUT_OF_REACH)
def test_the_fence_and_the_guard_are_out_of_its_reach(app, statement):
    with pytest.raises(psycopg.errors.InsufficientPrivilege), app.transaction():
        app.execute(statement)


@pytest.mark.parametrize("grantee", ["role", "PUBLIC"])
def test_default_privileges_give_nobody_the_fence(accounts, role, app, grantee):
    grantee = role if grantee == "role" else grantee
    run(accounts, ddl.unfence_table("accounts"))
    run(accounts, ddl.uninstall())
    with _default_privileges(accounts, grantee):
        run(accounts, ddl.install())
        run(accounts, ddl.fence_table("accounts", "account:{id}"))
    for statement in OUT_OF_REACH:
        with pytest.raises(psycopg.errors.InsufficientPrivilege), app.transaction():
            app.execute(statement)
    admit(app, 1)
    assert mark(accounts) == (1, ALICE)


def test_the_guard_of_a_table_is_no_function_to_call_or_to_attach(accounts, app):
    (guard,) = accounts.execute(
        "SELECT tgfoid::regproc::text FROM pg_trigger WHERE tgname = 'fencing_insert'"
    ).fetchone()
    app.execute("CREATE TABLE mine (id int)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        app.execute(f"CREATE TRIGGER t AFTER INSERT ON mine EXECUTE FUNCTION {guard}()".encode())


def test_the_guard_sees_rows_that_row_security_hides_from_the_writer(accounts, app, role):
    accounts.execute(
        f"ALTER TABLE accounts ENABLE ROW LEVEL SECURITY; "
        f"CREATE POLICY blind ON accounts FOR INSERT TO {role} WITH CHECK (true)".encode()
    )
    with refused(UNFENCED):
        app.execute("INSERT INTO accounts VALUES (44, 0)")

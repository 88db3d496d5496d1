"""What goes round the statements that write: older than the guard, or the work of its owner."""

from __future__ import annotations

import psycopg
import pytest

from fencing.schema import ddl
from fencing.schema.names import CLAIM_SETTING, UNFENCED
from tests.schema.sql import ALICE, admit, enter, refused, run, setting

WRITE = "UPDATE accounts SET balance = 0 WHERE id = 42"


def test_a_statement_that_was_prepared_before_the_table_was_fenced_is_checked(admin, connect):
    admin.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, balance int)")
    admin.execute("INSERT INTO accounts VALUES (42, 100)")
    other = connect()
    other.execute("PREPARE debit (bigint) AS UPDATE accounts SET balance = 0 WHERE id = $1")
    other.execute("SET plan_cache_mode = force_generic_plan")
    other.execute("EXECUTE debit (42)")
    other.rollback()
    # ROLLBACK does not forget a statement.
    run(admin, ddl.fence_table("accounts", "account:{id}"))
    with refused(UNFENCED):
        other.execute("EXECUTE debit (42)")


def test_a_function_that_was_planned_before_the_table_was_fenced_is_checked(admin, connect):
    admin.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, balance int)")
    admin.execute("INSERT INTO accounts VALUES (42, 100)")
    admin.execute(
        "CREATE FUNCTION debit() RETURNS void LANGUAGE plpgsql AS "
        "$$ BEGIN UPDATE accounts SET balance = 0 WHERE id = 42; END $$"
    )
    other = connect(autocommit=True)
    for _ in range(6):  # beyond the custom plans
        other.execute("SELECT debit()")
    run(admin, ddl.fence_table("accounts", "account:{id}"))
    with refused(UNFENCED):
        other.execute("SELECT debit()")


def test_a_transaction_that_had_written_before_is_waited_for(admin, connect):
    admin.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, balance int)")
    writer = connect()
    writer.execute("INSERT INTO accounts VALUES (42, 100)")
    with refused("ZF012", match="busy"):
        run(admin, ddl.fence_table("accounts", "account:{id}", lock_timeout=0.05))
    writer.commit()
    run(admin, ddl.fence_table("accounts", "account:{id}"))


def test_a_transaction_that_had_read_before_is_checked_at_its_first_write(admin, connect):
    admin.execute("CREATE TABLE accounts (id bigint PRIMARY KEY, balance int)")
    admin.execute("INSERT INTO accounts VALUES (42, 100)")
    reader = connect()
    reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    reader.execute("SELECT * FROM accounts")
    run(admin, ddl.fence_table("accounts", "account:{id}"))
    with refused(UNFENCED):
        reader.execute(WRITE)


def test_a_lease_presented_in_a_savepoint_that_is_released_stays(accounts, connect):
    admit(accounts, 1)
    other = connect()
    with other.transaction():
        with other.transaction():
            enter(other)
        other.execute(WRITE)


def test_a_claim_for_the_whole_session_is_of_no_transaction(accounts, connect):
    admit(accounts, 1)
    other = connect()
    enter(other)
    claim = setting(other, CLAIM_SETTING)
    other.commit()
    assert ALICE in claim
    other.autocommit = True
    other.execute("SELECT set_config(%s, %s, false)", [CLAIM_SETTING, claim])
    with refused(UNFENCED):
        other.execute(WRITE)


def test_a_whole_row_that_comes_from_elsewhere_is_checked_all_the_same(accounts, connect):
    accounts.execute("CREATE TABLE staging (LIKE accounts); INSERT INTO staging VALUES (99, 1)")
    with refused(UNFENCED):
        connect().execute("INSERT INTO accounts TABLE staging")


def test_a_trigger_of_the_users_that_cancels_the_write_leaves_nothing_to_check(accounts, connect):
    accounts.execute("""
        CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER never BEFORE UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION never();
    """)
    with connect() as other:
        assert other.execute(WRITE).rowcount == 0


@pytest.mark.parametrize(
    "ddl_statement",
    [
        "ALTER TABLE accounts ADD COLUMN note text DEFAULT 'x'",
        "ALTER TABLE accounts ALTER COLUMN balance TYPE bigint USING balance + 1",
        "ALTER TABLE accounts DISABLE TRIGGER ALL; UPDATE accounts SET balance = 0",
        "DROP TABLE accounts",
    ],
)
def test_what_the_owner_of_the_table_changes_with_ddl_is_no_write(accounts, ddl_statement):
    accounts.execute(ddl_statement.encode())


@pytest.mark.parametrize("what", ["ATTACH", "DETACH", "DROP"])
def test_rows_come_and_go_with_partitions_unchecked(admin, what):
    admin.execute("""
        CREATE TABLE entries (account_id bigint, part int) PARTITION BY LIST (part);
        CREATE TABLE first PARTITION OF entries FOR VALUES IN (0);
        CREATE TABLE other (account_id bigint, part int);
        INSERT INTO first VALUES (42, 0); INSERT INTO other VALUES (42, 1);
    """)
    run(admin, ddl.fence_table("entries", "account:{account_id}"))
    admin.execute(
        {
            "ATTACH": b"ALTER TABLE entries ATTACH PARTITION other FOR VALUES IN (1)",
            "DETACH": b"ALTER TABLE entries DETACH PARTITION first",
            "DROP": b"DROP TABLE first",
        }[what]
    )

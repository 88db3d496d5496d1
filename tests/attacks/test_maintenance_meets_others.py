"""A maintenance beside pruning and beside holders, and over rows that no fence can be of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fencing.schema import ddl
from fencing.schema.names import STALE, TABLE_BUSY
from tests.retention.conftest import age
from tests.schema.sql import ALICE, BOB, admit, enter, mark, refused, run, wait_until_blocked

PRUNE = "SELECT pruned FROM fencing.prune('1 hour')"


@pytest.fixture
def pruning(accounts, connect):
    """A transaction that is pruning the account's fence, whose mark was 7."""
    admit(accounts, 7)
    age(accounts)
    connection = connect()
    assert connection.execute(PRUNE).fetchone() == (1,)
    return connection


def in_the_meantime(admin, connection, pruning, statement):
    """`statement` waits for the pruning, which then is committed."""
    with ThreadPoolExecutor() as threads:
        outcome = threads.submit(connection.execute, statement)
        wait_until_blocked(admin, connection.info.backend_pid)
        pruning.commit()
        return outcome.result()


def test_a_maintenance_of_what_is_being_pruned_raises_the_fence_above_its_floor(
    accounts, connect, pruning
):
    maintaining = connect()
    maintaining.execute(ddl.maintain("accounts")[0].encode())
    in_the_meantime(accounts, maintaining, pruning, "UPDATE accounts SET balance = 0 WHERE id = 42")
    maintaining.commit()
    token, _ = mark(accounts)
    assert token == 8
    with refused(STALE):
        admit(accounts, 8, BOB)


@pytest.mark.parametrize("token", [5, 7])
def test_a_fence_that_is_being_pruned_is_not_raised_to_less_than_its_mark(
    accounts, connect, pruning, token
):
    with refused(STALE):
        in_the_meantime(
            accounts,
            connect(autocommit=True),
            pruning,
            f"SELECT fencing.raise_fence('account:42', {token})",
        )


def test_a_fence_that_is_being_raised_further_is_not_raised(accounts, connect):
    admit(accounts, 1)
    other = connect()
    other.execute("SELECT fencing.raise_fence('account:42', 9)")
    with refused(STALE):
        in_the_meantime(
            accounts,
            connect(autocommit=True),
            other,
            "SELECT fencing.raise_fence('account:42', 5)",
        )
    assert mark(accounts)[0] == 9


@pytest.mark.parametrize("name", ["", "é" * 300], ids=["empty", "too long"])
@pytest.mark.parametrize("partitioned", [False, True], ids=["plain", "partitioned"])
def test_rows_whose_name_no_resource_can_have_are_maintained(admin, name, partitioned):
    admin.execute(
        "CREATE TABLE tags (name text) PARTITION BY HASH (name);"
        "CREATE TABLE tags_0 PARTITION OF tags FOR VALUES WITH (MODULUS 1, REMAINDER 0)"
        if partitioned
        else "CREATE TABLE tags (name text)"
    )
    run(admin, ddl.fence_table("tags", "{name}"))
    with admin.transaction():
        run(admin, ddl.maintain("tags"))
        admin.execute("INSERT INTO tags VALUES (%s), ('a')", (name,))
    assert admin.execute("SELECT resource FROM fencing.fence").fetchall() == [("a",)]


def test_a_maintenance_waits_for_who_has_read_for_update(accounts, connect):
    admit(accounts, 1)
    holder, maintaining = connect(), connect(autocommit=True)
    enter(holder, ("account:42", 1, ALICE))
    holder.execute("SELECT balance FROM accounts WHERE id = 42 FOR UPDATE")
    migration = [*ddl.maintain("accounts"), "UPDATE accounts SET balance = balance + 1"]
    with ThreadPoolExecutor() as threads:
        outcome = threads.submit(run, maintaining, migration)
        wait_until_blocked(accounts, maintaining.info.backend_pid)
        holder.execute("UPDATE accounts SET balance = 50 WHERE id = 42")
        holder.commit()
        outcome.result()
    assert accounts.execute("SELECT balance FROM accounts WHERE id = 42").fetchone() == (51,)


def test_a_maintenance_says_that_somebody_has_read_for_update(accounts, connect):
    reader = connect()
    reader.execute("SELECT balance FROM accounts WHERE id = 42 FOR UPDATE")
    with refused(TABLE_BUSY, str(reader.info.backend_pid)):
        run(accounts, ddl.maintain("accounts", lock_timeout=0.01))


def test_an_observed_table_may_be_truncated_in_a_maintenance_as_well(admin):
    admin.execute("CREATE TABLE a (id bigint)")
    run(admin, ddl.fence_table("a", "a:{id}", mode="observe"))
    with admin.transaction():
        admin.execute("INSERT INTO a VALUES (1)")
        run(admin, ddl.maintain("a"))
        admin.execute("TRUNCATE a")
    assert admin.execute("SELECT count(*) FROM a").fetchone() == (0,)


def test_the_schema_may_be_uninstalled_in_the_transaction_of_a_maintenance(accounts):
    with accounts.transaction():
        run(accounts, ddl.maintain("accounts"))
        accounts.execute("UPDATE accounts SET balance = 1")
        run(accounts, ddl.unfence_table("accounts"))
        run(accounts, ddl.uninstall())
    assert accounts.execute("SELECT to_regnamespace('fencing')").fetchone() == (None,)

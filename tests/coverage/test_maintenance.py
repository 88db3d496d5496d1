"""Maintenance: one transaction writes everything, and overtakes every holder of what it wrote."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import IsolationLevel

from fencing.schema import ddl
from fencing.schema.names import NOT_FENCED, STALE, TABLE_BUSY, UNFENCED
from tests.schema.sql import (
    ALICE,
    BOB,
    admit,
    enter,
    mark,
    refused,
    run,
    wait_until_blocked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from tests.schema.conftest import Connect

MIGRATE = "UPDATE accounts SET balance = balance + 1"
DEBIT = "UPDATE accounts SET balance = balance - 10 WHERE id = 42"
LEVELS = pytest.mark.parametrize("level", list(IsolationLevel)[1:], ids=lambda level: level.name)
OLD_SNAPSHOTS = pytest.mark.parametrize(
    "level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE], ids=lambda lv: lv.name
)


@pytest.fixture
def maintainer(accounts, connect: Connect) -> psycopg.Connection:
    """A transaction of the owner's that maintains the table."""
    connection = connect()
    maintain(connection, "accounts")
    return connection


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """Threads for what has to wait."""
    with ThreadPoolExecutor() as threads:
        yield threads


def maintain(connection: psycopg.Connection, table: str) -> None:
    """In the transaction in progress, which goes on."""
    (statement,) = ddl.maintain(table)
    connection.execute(statement.encode())


def balances(connection: psycopg.Connection) -> dict[int, int]:
    return dict(connection.execute("SELECT id, balance FROM accounts").fetchall())


class TestWhatItMayDo:
    def test_it_writes_rows_of_every_resource_in_every_way(self, accounts, maintainer):
        maintainer.execute(MIGRATE)
        maintainer.execute("INSERT INTO accounts VALUES (44, 7)")
        maintainer.execute("DELETE FROM accounts WHERE id = 43")
        maintainer.execute("UPDATE accounts SET id = 45 WHERE id = 44")
        maintainer.commit()
        assert balances(accounts) == {42: 101, 45: 7}

    def test_a_truncate_is_refused_even_then(self, maintainer):
        with refused(UNFENCED, match="not even in maintenance"):
            maintainer.execute("TRUNCATE accounts")

    def test_a_table_of_one_resource_is_truncated_and_its_holder_overtaken(self, admin, connect):
        admin.execute("CREATE TABLE ledger (entry text); INSERT INTO ledger VALUES ('x')")
        run(admin, ddl.fence_table("ledger", "ledger"))
        admit(admin, 5, resource="ledger")
        with admin.transaction():
            maintain(admin, "ledger")
            admin.execute("TRUNCATE ledger")
        assert admin.execute("SELECT count(*) FROM ledger").fetchone() == (0,)
        with refused(STALE):
            enter(connect(), ("ledger", 5, ALICE))

    def test_rows_without_a_resource_can_be_put_right(self, admin):
        admin.execute("CREATE TABLE notes (owner bigint); INSERT INTO notes VALUES (NULL)")
        run(admin, ddl.fence_table("notes", "account:{owner}"))
        with admin.transaction():
            maintain(admin, "notes")
            admin.execute("UPDATE notes SET owner = 42")
        token, holder = mark(admin)
        assert token == 1
        assert holder.startswith("maintenance.")

    def test_partitions_are_included_and_so_are_those_that_come_later(self, admin):
        admin.execute("""
            CREATE TABLE entries (account_id bigint, part int) PARTITION BY LIST (part);
            CREATE TABLE first PARTITION OF entries FOR VALUES IN (0);
        """)
        run(admin, ddl.fence_table("entries", "account:{account_id}"))
        admin.execute("CREATE TABLE later PARTITION OF entries FOR VALUES IN (1)")
        with admin.transaction():
            maintain(admin, "entries")
            for table, part in (("entries", 0), ("first", 0), ("entries", 1), ("later", 1)):
                admin.execute(f"INSERT INTO {table} VALUES (42, {part})".encode())
            admin.execute("UPDATE entries SET part = 1 - part")
        assert mark(admin)[0] == 1

    def test_a_deferred_trigger_writes_at_its_commit(self, accounts, connect):
        accounts.execute("""
            CREATE TABLE orders (account_id bigint);
            CREATE FUNCTION debit() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                UPDATE accounts SET balance = 0 WHERE id = NEW.account_id; RETURN NULL;
            END $$;
            CREATE CONSTRAINT TRIGGER debit AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
                FOR EACH ROW EXECUTE FUNCTION debit();
        """)
        for order in (("before",), ("after",)):
            connection = connect()
            if order == ("before",):
                connection.execute("INSERT INTO orders VALUES (42)")
            maintain(connection, "accounts")
            if order == ("after",):
                connection.execute("INSERT INTO orders VALUES (43)")
            connection.commit()
        assert balances(accounts) == {42: 0, 43: 0}

    def test_two_tables_are_maintained_together(self, accounts, connect):
        accounts.execute("CREATE TABLE notes (owner bigint)")
        run(accounts, ddl.fence_table("notes", "account:{owner}"))
        connection = connect()
        maintain(connection, "accounts")
        maintain(connection, "notes")
        connection.execute(MIGRATE)
        connection.execute("INSERT INTO notes VALUES (42)")
        connection.commit()
        assert mark(accounts)[0] == 1, "raised once a transaction"

    def test_asking_twice_is_asking_once(self, maintainer):
        maintain(maintainer, "accounts")
        maintainer.execute(MIGRATE)
        maintainer.commit()

    def test_other_tables_stay_guarded(self, accounts, maintainer):
        accounts.execute("CREATE TABLE notes (owner bigint)")
        run(accounts, ddl.fence_table("notes", "account:{owner}"))
        with refused(UNFENCED, match="notes"):
            maintainer.execute("INSERT INTO notes VALUES (42)")

    @LEVELS
    def test_at_every_isolation_level(self, accounts, connect, level):
        connection = connect()
        connection.isolation_level = level
        maintain(connection, "accounts")
        connection.execute(MIGRATE)
        connection.commit()
        assert balances(accounts) == {42: 101, 43: 101}


class TestWhoItOvertakes:
    def test_every_resource_that_it_touched_and_no_other(self, accounts, connect):
        for account in (42, 43):
            admit(accounts, 9, resource=f"account:{account}")
        with connect() as connection:
            maintain(connection, "accounts")
            connection.execute("UPDATE accounts SET balance = 0 WHERE id = 42")
        assert mark(accounts)[0] == 10
        assert mark(accounts, "account:43") == (9, ALICE)

    def test_who_read_before_and_writes_after_in_a_new_transaction(self, accounts, connect):
        admit(accounts, 1)
        holder = connect()
        enter(holder)
        holder.execute("SELECT balance FROM accounts WHERE id = 42")
        holder.commit()
        with connect() as connection:
            maintain(connection, "accounts")
            connection.execute(MIGRATE)
        with refused(STALE):
            enter(holder)

    @LEVELS
    def test_who_read_before_and_writes_after_in_one_transaction(self, accounts, connect, level):
        """Maintenance waits for writers of the table, not for readers."""
        admit(accounts, 1)
        holder = connect()
        holder.isolation_level = level
        enter(holder)
        holder.execute("SELECT balance FROM accounts WHERE id = 42")
        with connect() as connection:
            maintain(connection, "accounts")
            connection.execute(MIGRATE)
        # By the fence row; an old snapshot fails at the account's row already.
        with refused(STALE if level is IsolationLevel.READ_COMMITTED else "40001"):
            holder.execute(DEBIT)
        holder.rollback()
        assert balances(accounts) == {42: 101, 43: 101}

    @OLD_SNAPSHOTS
    def test_who_has_an_old_snapshot_and_writes_other_rows_of_the_resource(
        self, accounts, connect, level
    ):
        accounts.execute("CREATE TABLE notes (owner bigint)")
        run(accounts, ddl.fence_table("notes", "account:{owner}"))
        admit(accounts, 1)
        holder = connect()
        holder.isolation_level = level
        enter(holder)
        with connect() as connection:
            maintain(connection, "accounts")
            connection.execute(MIGRATE)
        with refused("40001"):
            holder.execute("INSERT INTO notes VALUES (42)")

    def test_an_admission_that_comes_meanwhile_waits_and_finds_the_mark(
        self, accounts, connect, background, maintainer
    ):
        admit(accounts, 1)
        maintainer.execute(MIGRATE)
        other = connect(autocommit=True)
        late: Future = background.submit(admit, other, 2, BOB, wait_ms=10_000)
        wait_until_blocked(accounts, other.info.backend_pid)
        maintainer.commit()
        with refused(STALE):
            late.result()
        assert mark(accounts)[0] == 2
        assert admit(accounts, 3, BOB)

    def test_a_first_admission_that_comes_meanwhile_waits_and_finds_the_mark(
        self, accounts, connect, background, maintainer
    ):
        """There is no row to lock yet; the primary key makes it wait."""
        maintainer.execute(MIGRATE)
        other = connect(autocommit=True)
        late: Future = background.submit(admit, other, 1, BOB, wait_ms=10_000)
        wait_until_blocked(accounts, other.info.backend_pid)
        maintainer.commit()
        with refused(STALE):
            late.result()

    def test_an_admission_that_comes_meanwhile_is_good_when_it_is_rolled_back(
        self, accounts, connect, background, maintainer
    ):
        maintainer.execute(MIGRATE)
        other = connect(autocommit=True)
        late: Future = background.submit(admit, other, 1, BOB, wait_ms=10_000)
        wait_until_blocked(accounts, other.info.backend_pid)
        maintainer.rollback()
        assert late.result()
        assert mark(accounts) == (1, BOB)

    def test_its_own_lease_on_something_stays_good(self, accounts, connect):
        admit(accounts, 1)
        connection = connect()
        enter(connection)
        maintain(connection, "accounts")
        connection.execute(MIGRATE)
        connection.commit()
        assert mark(accounts) == (1, ALICE)
        assert mark(accounts, "account:43")[1].startswith("maintenance.")


class TestHowItEnds:
    def end(self, connection: psycopg.Connection, how: str) -> None:
        if how == "commit":
            connection.commit()
        elif how == "rollback":
            connection.rollback()
        else:
            connection.execute("ROLLBACK TO before")

    @pytest.mark.parametrize("wrote", [True, False])
    @pytest.mark.parametrize("how", ["commit", "rollback", "savepoint"])
    def test_with_its_transaction_or_its_savepoint(self, accounts, connect, how, wrote):
        connection = connect()
        connection.execute("SAVEPOINT before")
        maintain(connection, "accounts")
        if wrote:
            connection.execute(MIGRATE)
        self.end(connection, how)
        with refused(UNFENCED):
            connection.execute(MIGRATE)
        connection.rollback()
        assert accounts.execute("SELECT count(*) FROM fencing.maintenance").fetchone() == (0,)

    def test_with_constraints_that_are_made_immediate(self, maintainer):
        """Only what asks for that itself: the migration is stopped, nothing slips through."""
        maintainer.execute(MIGRATE)
        maintainer.execute("SET CONSTRAINTS ALL IMMEDIATE")
        with refused(UNFENCED):
            maintainer.execute(MIGRATE)


class TestWhoWaits:
    def test_other_writers_wait_until_it_ends(self, accounts, connect, background, maintainer):
        admit(accounts, 1, resource="account:43")
        holder = connect()
        enter(holder, ("account:43", 1, ALICE))
        maintainer.execute("UPDATE accounts SET balance = 0 WHERE id = 42")
        late: Future = background.submit(
            holder.execute, "UPDATE accounts SET balance = 1 WHERE id = 43"
        )
        wait_until_blocked(accounts, holder.info.backend_pid)
        maintainer.commit()
        late.result()
        holder.commit()
        assert balances(accounts) == {42: 0, 43: 1}

    def test_readers_do_not_wait(self, accounts, maintainer):
        maintainer.execute(MIGRATE)
        assert balances(accounts) == {42: 100, 43: 100}

    def test_it_waits_for_open_writers_and_then_says_who_they_are(self, accounts, connect):
        admit(accounts, 1)
        holder = connect()
        enter(holder)
        holder.execute(DEBIT)
        with refused(TABLE_BUSY) as busy, connect() as connection:
            run(connection, ddl.maintain("accounts", lock_timeout=0.05))
        assert str(holder.info.backend_pid) in busy.value.diag.message_detail

    def test_two_at_once_are_one_after_the_other(self, accounts, connect, background, maintainer):
        maintainer.execute(MIGRATE)
        second = connect()
        late: Future = background.submit(maintain, second, "accounts")
        wait_until_blocked(accounts, second.info.backend_pid)
        maintainer.commit()
        late.result()
        second.execute(MIGRATE)
        second.commit()
        assert balances(accounts) == {42: 102, 43: 102}
        assert mark(accounts)[0] == 2

    def test_a_holder_and_a_maintenance_that_wait_for_each_other_are_told_apart(
        self, accounts, connect, background
    ):
        """The holder has locked its fence; the maintenance has locked the table."""
        accounts.execute("CREATE TABLE notes (owner bigint)")
        run(accounts, ddl.fence_table("notes", "account:{owner}"))
        admit(accounts, 1)
        holder, maintainer = connect(), connect()
        maintainer.execute("SET LOCAL deadlock_timeout = '20ms'")
        enter(holder)
        holder.execute("INSERT INTO notes VALUES (42)")
        maintain(maintainer, "accounts")
        raising: Future = background.submit(maintainer.execute, MIGRATE)
        wait_until_blocked(accounts, maintainer.info.backend_pid)
        writing: Future = background.submit(holder.execute, DEBIT)
        done, _ = wait([raising, writing], timeout=30, return_when=FIRST_EXCEPTION)
        (loser,) = (each for each in done if each.exception() is not None)
        with refused("40P01"):
            loser.result()
        (holder if loser is writing else maintainer).rollback()
        (raising if loser is writing else writing).result()


class TestWhoMayAsk:
    def test_not_everybody(self, accounts, connect):
        accounts.execute("DROP ROLE IF EXISTS coverage_app")
        accounts.execute("CREATE ROLE coverage_app")
        accounts.execute("GRANT ALL ON accounts TO coverage_app")
        try:
            app = connect()
            app.execute("SET ROLE coverage_app")
            with pytest.raises(psycopg.errors.InsufficientPrivilege), app.transaction():
                maintain(app, "accounts")
            for forged in (
                "INSERT INTO fencing.maintenance VALUES (pg_current_xact_id(), 'public.accounts')",
                "SELECT fencing.raise_maintained('{account:42}')",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), app.transaction():
                    app.execute(forged.encode())
            app.close()
        finally:
            accounts.execute("DROP OWNED BY coverage_app; DROP ROLE coverage_app")

    def test_of_a_table_that_is_not_fenced_there_is_nothing_to_maintain(self, accounts):
        accounts.execute("CREATE TABLE plain ()")
        with refused(NOT_FENCED):
            maintain(accounts, "plain")

"""Partitioned tables: what becomes of their guard when partitions come, go and are written."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import chain, combinations
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema import ddl
from fencing.schema.names import ALREADY_FENCED, UNFENCED, UNFIT_TEMPLATE
from tests.schema.sql import ALICE, admit, enter, refused, run

if TYPE_CHECKING:
    from tests.schema.conftest import Connect

OPERATIONS = ("insert", "update", "delete")
SUBSETS = list(chain.from_iterable(combinations(OPERATIONS, n) for n in (1, 2, 3)))
RESOURCE = "account:1"


def make_entries(owner: psycopg.Connection, operations: tuple[str, ...] = OPERATIONS) -> None:
    """A guarded table with two partitions; account 1 has a row in the first."""
    owner.execute("""
        CREATE TABLE entries (account_id bigint, part int, amount int DEFAULT 0)
            PARTITION BY RANGE (part);
        CREATE TABLE first PARTITION OF entries FOR VALUES FROM (0) TO (10);
        CREATE TABLE second PARTITION OF entries FOR VALUES FROM (10) TO (20);
        INSERT INTO entries VALUES (1, 0), (2, 0), (2, 10);
    """)
    run(owner, ddl.fence_table("entries", "account:{account_id}", operations=operations))
    admit(owner, 1, resource=RESOURCE)


@pytest.fixture
def entries(admin: psycopg.Connection) -> psycopg.Connection:
    """The owner's connection; a table as above."""
    make_entries(admin)
    return admin


def rows(owner: psycopg.Connection) -> list[tuple[int, int]]:
    return owner.execute("SELECT account_id, part FROM entries ORDER BY 1, 2").fetchall()


def trigger_states(owner: psycopg.Connection, table: str) -> dict[str, str]:
    return dict(
        owner.execute(
            "SELECT tgname, CAST(tgenabled AS text) FROM pg_trigger "
            "WHERE tgrelid = CAST(%s AS regclass) AND tgname ~ 'fencing'",
            [table],
        ).fetchall()
    )


class TestPartitionsThatComeLater:
    ALWAYS = dict.fromkeys(("fencing_insert", "fencing_update", "fencing_delete"), "A")

    def test_their_triggers_are_enabled_always(self, entries):
        entries.execute("CREATE TABLE later PARTITION OF entries FOR VALUES FROM (20) TO (30)")
        entries.execute("CREATE TABLE attached (account_id bigint, part int, amount int)")
        entries.execute(
            "ALTER TABLE entries ATTACH PARTITION attached FOR VALUES FROM (30) TO (40)"
        )
        for table in ("entries", "first", "later", "attached"):
            states = trigger_states(entries, table)
            assert self.ALWAYS.items() <= states.items(), table
            assert {name for name, state in states.items() if state != "A"} <= {"fencing_pin"}

    @pytest.mark.parametrize(
        "make",
        [
            "CREATE TABLE later PARTITION OF entries FOR VALUES FROM (20) TO (30)",
            (
                "CREATE TABLE later (LIKE entries); "
                "ALTER TABLE entries ATTACH PARTITION later FOR VALUES FROM (20) TO (30)"
            ),
            "CREATE TABLE later PARTITION OF entries DEFAULT",
        ],
    )
    def test_their_truncate_is_the_one_gap_and_refreshing_closes_it(self, entries, connect, make):
        entries.execute(make)
        other = connect()
        for write in ("INSERT INTO later VALUES (1, 25)", "INSERT INTO entries VALUES (1, 25)"):
            with refused(UNFENCED), other.transaction():
                other.execute(write.encode())
        other.execute("TRUNCATE later")
        other.rollback()
        entries.execute("SELECT fencing.refresh_guards()")
        for truncate in ("TRUNCATE later", "TRUNCATE ONLY later", "TRUNCATE first, later"):
            with refused(UNFENCED, match="TRUNCATE"), other.transaction():
                other.execute(truncate.encode())

    def test_a_truncate_of_the_root_is_refused_whatever_came_later(self, entries, connect):
        entries.execute("CREATE TABLE later PARTITION OF entries FOR VALUES FROM (20) TO (30)")
        with refused(UNFENCED, match="TRUNCATE"):
            connect().execute("TRUNCATE entries")

    def test_refreshing_twice_changes_nothing(self, entries):
        entries.execute("CREATE TABLE later PARTITION OF entries FOR VALUES FROM (20) TO (30)")
        entries.execute("SELECT fencing.refresh_guards()")
        query = "SELECT tgrelid, tgname, oid FROM pg_trigger WHERE tgname ~ 'fencing' ORDER BY 1, 2"
        before = entries.execute(query).fetchall()
        assert entries.execute("SELECT fencing.refresh_guards()").fetchone() == (1,)
        assert entries.execute(query).fetchall() == before

    def test_unfencing_forgets_them_too(self, entries, connect):
        entries.execute("CREATE TABLE later PARTITION OF entries FOR VALUES FROM (20) TO (30)")
        entries.execute("SELECT fencing.refresh_guards()")
        run(entries, ddl.unfence_table("entries"))
        for table in ("entries", "first", "second", "later"):
            assert trigger_states(entries, table) == {}
        connect().execute("TRUNCATE later, first")

    def test_a_guarded_table_is_not_attached(self, entries):
        entries.execute("CREATE TABLE own (account_id bigint, part int, amount int)")
        run(entries, ddl.fence_table("own", "own:{account_id}"))
        with pytest.raises(psycopg.Error, match="transition tables"):
            entries.execute("ALTER TABLE entries ATTACH PARTITION own FOR VALUES FROM (20) TO (30)")

    def test_a_partition_is_not_fenced_by_itself(self, entries):
        with refused(UNFIT_TEMPLATE, match="part of public.entries"):
            run(entries, ddl.fence_table("first", "account:{account_id}"))


class TestDetachedPartitions:
    @pytest.fixture(params=["", "CONCURRENTLY"])
    def detached(self, entries, request) -> psycopg.Connection:
        """The owner's connection; partition "first" has been detached."""
        entries.execute(f"ALTER TABLE entries DETACH PARTITION first {request.param}".encode())
        return entries

    @pytest.mark.usefixtures("detached")
    def test_writes_to_it_are_no_longer_checked(self, connect):
        connect().execute("UPDATE first SET amount = 1; DELETE FROM first")

    def test_it_can_be_fenced_by_itself(self, detached, connect):
        run(detached, ddl.fence_table("first", "account:{account_id}"))
        for write in ("UPDATE first SET amount = 1", "TRUNCATE first"):
            with refused(UNFENCED), connect() as other:
                other.execute(write.encode())

    def test_its_truncate_is_still_refused_until_it_is_unfenced(self, detached, connect):
        with refused(UNFENCED), connect() as other:
            other.execute("TRUNCATE first")
        detached.execute("SELECT fencing.refresh_guards()")
        with refused(UNFENCED), connect() as other:
            other.execute("TRUNCATE first")
        run(detached, ddl.unfence_table("first"))
        connect().execute("TRUNCATE first")

    def test_its_guard_cannot_be_changed_and_says_what_can(self, detached):
        with pytest.raises(psycopg.Error, match="no part of that any more: fence it by itself"):
            run(detached, ddl.alter_fence("first", mode="observe"))

    @pytest.mark.usefixtures("detached")
    def test_the_others_stay_guarded(self, connect):
        with refused(UNFENCED):
            connect().execute("UPDATE second SET amount = 1")

    def test_attached_again_it_is_guarded_again(self, detached, connect):
        detached.execute("ALTER TABLE entries ATTACH PARTITION first FOR VALUES FROM (0) TO (10)")
        for write in (
            "UPDATE first SET amount = 1",
            "UPDATE entries SET amount = 1 WHERE part = 0",
        ):
            with refused(UNFENCED), connect() as other:
                other.execute(write.encode())

    def test_the_whole_can_be_unfenced(self, detached):
        run(detached, ddl.unfence_table("entries"))
        assert trigger_states(detached, "first") == {}


class TestRowsThatMoveToAnotherPartition:
    """PostgreSQL makes a DELETE and an INSERT of such an UPDATE."""

    MOVE = "UPDATE entries SET part = 10 WHERE account_id = 1"

    @pytest.mark.parametrize("operations", SUBSETS, ids="+".join)
    def test_they_need_the_lease_whichever_operations_are_guarded(self, admin, connect, operations):
        make_entries(admin, operations)
        with refused(UNFENCED, match="account:1"):
            connect().execute(self.MOVE)
        assert (1, 0) in rows(admin)
        holder = connect()
        enter(holder, (RESOURCE, 1, ALICE))
        holder.execute(self.MOVE)
        holder.commit()
        assert (1, 10) in rows(admin)

    @pytest.mark.parametrize("operations", SUBSETS, ids="+".join)
    def test_into_another_resource_they_need_what_is_guarded(self, admin, connect, operations):
        """Both, except that with only "insert" or only "delete" it is what comes or what goes."""
        make_entries(admin, operations)
        admit(admin, 1, resource="account:3")
        move = "UPDATE entries SET part = 10, account_id = 3 WHERE account_id = 1"
        needed = {
            ("insert",): {"account:3"},
            ("delete",): {"account:1"},
        }.get(operations, {"account:1", "account:3"})
        for missing in needed:
            with refused(UNFENCED, match=missing), connect() as other:
                enter(other, *((each, 1, ALICE) for each in {RESOURCE, "account:3"} - {missing}))
                other.execute(move.encode())
        holder = connect()
        enter(holder, *((each, 1, ALICE) for each in needed))
        holder.execute(move.encode())

    @pytest.mark.parametrize("operations", [("insert",), ("delete",), ("insert", "delete")])
    def test_within_a_partition_an_unguarded_update_stays_unguarded(
        self, admin, connect, operations
    ):
        make_entries(admin, operations)
        connect().execute("UPDATE entries SET part = 5 WHERE account_id = 1")

    GENERATED = """
        CREATE TABLE entries (base bigint, part int,
            account_id bigint GENERATED ALWAYS AS (base) STORED) PARTITION BY RANGE (part);
        CREATE TABLE first PARTITION OF entries FOR VALUES FROM (0) TO (10);
        CREATE TABLE second PARTITION OF entries FOR VALUES FROM (10) TO (20);
        INSERT INTO entries VALUES (1, 0);
    """

    @pytest.mark.parametrize("operations", [o for o in SUBSETS if "update" in o and len(o) < 3])
    def test_a_resource_that_is_not_known_when_they_move_is_refused_from_the_start(
        self, admin, operations
    ):
        """In a BEFORE trigger the new value of a generated column is not."""
        admin.execute(self.GENERATED)
        with refused(UNFIT_TEMPLATE, match='"account_id", which is generated'):
            run(admin, ddl.fence_table("entries", "account:{account_id}", operations=operations))
        run(admin, ddl.fence_table("entries", "account:{account_id}"))
        with refused(UNFIT_TEMPLATE, match='"account_id", which is generated'):
            run(admin, ddl.alter_fence("entries", operations=operations))

    @pytest.mark.parametrize("operations", [o for o in SUBSETS if "update" not in o or len(o) == 3])
    def test_a_resource_that_is_generated_is_known_when_they_move(self, admin, connect, operations):
        admin.execute(self.GENERATED)
        run(admin, ddl.fence_table("entries", "account:{account_id}", operations=operations))
        for resource in (RESOURCE, "account:3"):
            admit(admin, 1, resource=resource)
        with refused(UNFENCED), connect() as other:
            other.execute(self.MOVE.encode())
        for change in ("part = 5", "part = 10", "part = 0, base = 3"):
            holder = connect()
            enter(holder, (RESOURCE, 1, ALICE), ("account:3", 1, ALICE))
            holder.execute(f"UPDATE entries SET {change} WHERE account_id = 1".encode())
            holder.rollback()

    @pytest.mark.parametrize(
        ("name", "operations", "hides"),
        [("a", ("update",), False), ("~~last", ("update",), True), ("~~last", OPERATIONS, False)],
    )
    def test_only_a_trigger_that_sorts_behind_the_guards_own_hides_the_new_resource(
        self, admin, connect, name, operations, hides
    ):
        """And only where not all three operations are guarded."""
        make_entries(admin, operations)
        admin.execute("""
            CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                NEW.part := 10; NEW.account_id := 3; RETURN NEW;
            END $$;
        """)
        admin.execute(
            f'CREATE TRIGGER "{name}" BEFORE UPDATE ON entries '
            "FOR EACH ROW EXECUTE FUNCTION move()".encode()
        )
        holder = connect()
        enter(holder, (RESOURCE, 1, ALICE))
        with nullcontext() if hides else refused(UNFENCED, match="account:3"):
            holder.execute("UPDATE entries SET amount = 1 WHERE account_id = 1")


def test_a_table_with_a_guarded_part_is_fenced_once(entries):
    with refused(ALREADY_FENCED):
        run(entries, ddl.fence_table("entries", "account:{account_id}"))


def test_a_middle_table_and_its_leaves_are_guarded_by_the_root(admin, connect: Connect):
    admin.execute("""
        CREATE TABLE entries (account_id bigint, part int) PARTITION BY RANGE (part);
        CREATE TABLE middle PARTITION OF entries FOR VALUES FROM (0) TO (20)
            PARTITION BY LIST (part);
        CREATE TABLE leaf PARTITION OF middle FOR VALUES IN (0);
    """)
    run(admin, ddl.fence_table("entries", "account:{account_id}"))
    admin.execute("CREATE TABLE late_leaf PARTITION OF middle FOR VALUES IN (1)")
    admin.execute("""
        CREATE TABLE late_middle PARTITION OF entries FOR VALUES FROM (20) TO (40)
            PARTITION BY LIST (part);
        CREATE TABLE leaf_of_late_middle PARTITION OF late_middle FOR VALUES IN (20);
    """)
    for table, part in (
        ("entries", 0), ("middle", 0), ("leaf", 0), ("late_leaf", 1), ("middle", 1),
        ("late_middle", 20), ("leaf_of_late_middle", 20),
    ):  # fmt: skip
        with refused(UNFENCED), connect() as other:
            other.execute(f"INSERT INTO {table} VALUES (1, {part})".encode())
        assert set(trigger_states(admin, table).values()) <= {"A", "O"}

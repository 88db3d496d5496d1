"""Inheritance: what becomes of a guard when children come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencing.schema import ddl
from fencing.schema.names import NOT_FENCED, UNFENCED
from tests.schema.sql import refused, run

if TYPE_CHECKING:
    import psycopg

    from tests.schema.conftest import Connect

STRAIGHT = ("INSERT INTO later VALUES (1, 1)", "UPDATE later SET amount = 1", "DELETE FROM later")


@pytest.fixture
def entries(admin: psycopg.Connection) -> psycopg.Connection:
    """The owner's connection; a guarded table with a child, and a child that came later."""
    admin.execute("""
        CREATE TABLE entries (account_id bigint, amount int);
        CREATE TABLE child () INHERITS (entries);
        INSERT INTO child VALUES (1, 1);
    """)
    run(admin, ddl.fence_table("entries", "account:{account_id}"))
    admin.execute("CREATE TABLE later () INHERITS (entries); INSERT INTO later VALUES (1, 1)")
    return admin


def test_straight_writes_to_a_later_child_are_the_gap_and_refreshing_closes_it(entries, connect):
    other = connect()
    for write in STRAIGHT:
        other.execute(write.encode())
    other.rollback()
    entries.execute("SELECT fencing.refresh_guards()")
    for write in (*STRAIGHT, "TRUNCATE later", "TRUNCATE ONLY later"):
        with refused(UNFENCED), other.transaction():
            other.execute(write.encode())


def test_a_later_child_is_covered_through_its_parent_without_refreshing(entries, connect):
    with refused(UNFENCED):
        connect().execute("UPDATE entries SET amount = 2 WHERE tableoid = 'later'::regclass")


def test_refreshing_enables_the_triggers_of_a_later_child_always(entries):
    entries.execute("SELECT fencing.refresh_guards()")
    query = "SELECT tgname, CAST(tgenabled AS text) FROM pg_trigger WHERE tgrelid = %s::regclass"
    states = {
        table: dict(entries.execute(query, [table]).fetchall()) for table in ("child", "later")
    }
    assert states["child"] == states["later"]
    assert {name for name, state in states["later"].items() if state != "A"} == {"fencing_pin"}


class TestChildThatLeaves:
    @pytest.fixture
    def left(self, entries) -> psycopg.Connection:
        """The owner's connection; "child" inherits no more."""
        entries.execute("ALTER TABLE child NO INHERIT entries")
        return entries

    @pytest.mark.parametrize("refresh", [False, True])
    def test_it_keeps_its_guard(self, left, connect: Connect, refresh):
        if refresh:
            left.execute("SELECT fencing.refresh_guards()")
        for write in ("UPDATE child SET amount = 2", "DELETE FROM child", "TRUNCATE child"):
            with refused(UNFENCED), connect() as other:
                other.execute(write.encode())

    def test_it_can_be_unfenced_and_the_root_stays_guarded(self, left, connect):
        run(left, ddl.unfence_table("child"))
        connect().execute("UPDATE child SET amount = 2; TRUNCATE child")
        with refused(UNFENCED):
            connect().execute("INSERT INTO entries VALUES (1, 1)")

    def test_it_can_be_fenced_by_itself(self, left, connect):
        run(left, ddl.fence_table("child", "child:{account_id}"))
        with refused(UNFENCED, match="child:1"):
            connect().execute("UPDATE child SET amount = 2")
        run(left, ddl.unfence_table("entries"))
        with refused(UNFENCED, match="child:1"):
            connect().execute("UPDATE child SET amount = 2")

    def test_its_guard_is_not_changed_with_the_roots(self, left):
        for statements in (ddl.alter_fence("child", mode="observe"), ddl.maintain("child")):
            with refused(NOT_FENCED, match="no part of that any more"):
                run(left, statements)

    def test_unfencing_the_root_takes_it_along(self, left, connect):
        run(left, ddl.unfence_table("entries"))
        connect().execute("UPDATE child SET amount = 2; TRUNCATE child")

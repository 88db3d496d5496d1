"""Two who change one guard at a time: what each has asked for is so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from fencing.schema import ddl
from fencing.schema.names import NOT_FENCED, TABLE_BUSY, UNFENCED, UNFIT_TEMPLATE
from tests.schema.sql import refused, run, wait_until_blocked


@pytest.fixture
def observed(admin):
    """A table `visits` whose guard observes INSERT alone."""
    admin.execute("CREATE TABLE visits (id bigint, at text)")
    run(admin, ddl.fence_table("visits", "visit:{id}", operations=["insert"], mode="observe"))
    return admin


def in_the_meantime(admin, connect, first, second):
    """`second` waits for the table that `first`, not committed yet, has locked."""
    one, other = connect(), connect(autocommit=True)
    for statement in first:
        one.execute(statement.encode())
    with ThreadPoolExecutor() as threads:
        outcome = threads.submit(run, other, second)
        wait_until_blocked(admin, other.info.backend_pid)
        one.commit()
        outcome.result()


def test_who_adds_operations_does_not_put_enforcement_back(observed, connect):
    in_the_meantime(
        observed,
        connect,
        ddl.alter_fence("visits", mode="enforce"),
        ddl.alter_fence("visits", operations=["insert", "update", "delete"]),
    )
    assert observed.execute("SELECT mode, operations FROM fencing.guards").fetchone() == (
        "enforce",
        ["insert", "update", "delete"],
    )
    with refused(UNFENCED):
        observed.execute("INSERT INTO visits VALUES (1)")


def test_who_enforces_does_not_take_operations_back(observed, connect):
    in_the_meantime(
        observed,
        connect,
        ddl.alter_fence("visits", operations=["insert", "update", "delete"], resource="{at}"),
        ddl.alter_fence("visits", mode="enforce"),
    )
    assert observed.execute("SELECT mode, operations, resource FROM fencing.guards").fetchone() == (
        "enforce",
        ["insert", "update", "delete"],
        "{at}",
    )


def test_a_guard_that_has_gone_meanwhile_is_not_altered(observed, connect):
    with refused(NOT_FENCED):
        in_the_meantime(
            observed,
            connect,
            ddl.unfence_table("visits"),
            ddl.alter_fence("visits", mode="enforce"),
        )


def test_a_column_that_has_become_unfit_meanwhile_is_noticed(admin, connect):
    admin.execute("CREATE TABLE visits (id bigint, at text)")
    with refused(UNFIT_TEMPLATE):
        in_the_meantime(
            admin,
            connect,
            ["ALTER TABLE visits ALTER at TYPE timestamp USING NULL"],
            ddl.fence_table("visits", "visit:{at}"),
        )


def test_a_column_may_have_dots(admin):
    admin.execute('CREATE TABLE visits ("id...of" bigint)')
    run(admin, ddl.fence_table("visits", "visit:{id...of}"))
    with refused(UNFENCED, "visit:7"):
        admin.execute("INSERT INTO visits VALUES (7)")


def test_refreshing_does_not_put_back_what_was_changed_meanwhile(observed, connect):
    # Made before `visits`: refreshing has to wait for it, since its child needs triggers.
    observed.execute("CREATE TABLE zones (id bigint)")
    run(observed, ddl.unfence_table("visits"))
    observed.execute("DROP TABLE visits; CREATE TABLE visits (id bigint)")
    run(observed, ddl.fence_table("zones", "zone:{id}"))
    run(observed, ddl.fence_table("visits", "visit:{id}", mode="observe"))
    observed.execute("CREATE TABLE more () INHERITS (zones)")
    writing, refreshing = connect(), connect(autocommit=True)
    writing.execute("INSERT INTO more VALUES (1)")
    with ThreadPoolExecutor() as threads:
        refreshed = threads.submit(refreshing.execute, "SELECT fencing.refresh_guards()")
        wait_until_blocked(observed, refreshing.info.backend_pid)
        altered = threads.submit(
            run, connect(autocommit=True), ddl.alter_fence("visits", mode="enforce")
        )
        # By then it has been altered, or waits for the refreshing.
        wait([altered], timeout=0.2)
        writing.commit()
        refreshed.result()
        altered.result()
    with refused(UNFENCED):
        observed.execute("INSERT INTO visits VALUES (1)")


def test_refreshing_waits_for_who_is_changing_a_guard(observed, connect):
    in_the_meantime(
        observed,
        connect,
        ddl.alter_fence("visits", mode="enforce"),
        ["SELECT fencing.refresh_guards()"],
    )
    with refused(UNFENCED):
        observed.execute("INSERT INTO visits VALUES (1)")


def test_who_waits_for_another_change_says_so(observed, connect):
    changing = connect()
    for statement in ddl.alter_fence("visits", mode="enforce"):
        changing.execute(statement.encode())
    with refused(TABLE_BUSY, str(changing.info.backend_pid)):
        run(observed, ddl.alter_fence("visits", mode="enforce", lock_timeout=0.01))


def test_refreshing_passes_over_a_guard_that_is_being_removed(observed, connect):
    in_the_meantime(
        observed,
        connect,
        ddl.unfence_table("visits"),
        ["SELECT fencing.refresh_guards()"],
    )
    observed.execute("INSERT INTO visits VALUES (1)")

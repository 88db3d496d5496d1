"""Two who change one guard at a time: what each has asked for is so."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from fencing.schema import ddl
from fencing.schema.names import NOT_FENCED, UNFENCED, UNFIT_TEMPLATE
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

"""fencing.admit: what is accepted, what is refused, and what waits for what, how long."""

from __future__ import annotations

import json
import threading
import time

import psycopg
import pytest

from fencing.schema.names import (
    ADMISSION_BLOCKED,
    ADMISSION_ISOLATION,
    IMPLAUSIBLE_TOKEN,
    STALE,
)
from tests.schema.sql import (
    ACCOUNT,
    ALICE,
    BOB,
    admit,
    enter,
    mark,
    refused,
    setting,
    wait_until_blocked,
)

HELD = "SELECT pg_advisory_lock(fencing.lock_key(%s))"


def test_the_first_admission_makes_the_fence(admin):
    assert admit(admin, 1) is True
    assert mark(admin) == (1, ALICE)


def test_a_higher_token_takes_over(admin):
    admit(admin, 1)
    assert admit(admin, 2, BOB) is True
    assert mark(admin) == (2, BOB)


def test_the_same_holder_may_come_back_with_a_higher_token(admin):
    admit(admin, 1)
    assert admit(admin, 2) is True


def test_admitting_ones_own_pair_again_changes_nothing(admin):
    admit(admin, 1)
    before = admin.execute("SELECT f, xmin FROM fencing.fence AS f").fetchone()
    assert admit(admin, 1) is False
    assert admin.execute("SELECT f, xmin FROM fencing.fence AS f").fetchone() == before


@pytest.mark.parametrize(("token", "holder"), [(5, BOB), (4, ALICE), (4, BOB), (1, BOB)])
def test_a_token_that_is_not_higher_is_refused_with_the_mark(admin, token, holder):
    admit(admin, 5)
    with refused(STALE) as caught:
        admit(admin, token, holder)
    detail = caught.value.diag.message_detail
    assert detail == f'{{"token": {token}, "resource": "{ACCOUNT}", "current_token": 5}}'
    assert mark(admin) == (5, ALICE)


def test_a_doomed_admission_returns_at_once_though_the_lock_is_taken(admin, connect):
    admit(admin, 5)
    connect(autocommit=True).execute(HELD, (ACCOUNT,))
    with refused(STALE):
        admit(admin, 5, BOB, wait_ms=3_600_000)
    assert admit(admin, 5, wait_ms=3_600_000) is False


def test_an_open_transaction_blocks_and_is_named(admin, connect):
    admit(admin, 1)
    holder = connect()
    enter(holder)
    with refused(ADMISSION_BLOCKED) as caught:
        admit(admin, 2, BOB)
    pid = holder.info.backend_pid
    facts = {"resource": ACCOUNT, "blocked_by": [pid]}
    said = json.loads(caught.value.diag.message_detail)
    assert abs(said.pop("waiting_since") - time.time()) < 60  # for eviction
    assert said == facts
    assert mark(admin) == (1, ALICE)


# Locks that differ from the resource's in one half of the key each, or in its kind only.
NEIGHBOURS = """
SELECT pg_advisory_xact_lock_shared(k # 1),
    pg_advisory_xact_lock_shared(k # (CAST(1 AS bigint) << 32)),
    pg_advisory_xact_lock_shared(
        CAST(CAST(CAST(k AS bit(64)) AS bit(32)) AS int),
        CAST(CAST(CAST(k AS bit(64)) << 32 AS bit(32)) AS int))
FROM fencing.lock_key(%s) AS k"""


def test_all_blockers_are_named_and_nobody_else(admin, connect):
    admit(admin, 1)
    holders = [connect(), connect()]
    for holder in holders:
        enter(holder)
    connect().execute(NEIGHBOURS, (ACCOUNT,))
    waiting = connect(autocommit=True)
    thread = threading.Thread(target=admit, args=(waiting, 2), kwargs={"wait_ms": 10_000})
    thread.start()
    wait_until_blocked(admin, waiting.info.backend_pid)
    with refused(ADMISSION_BLOCKED) as caught:
        admit(admin, 3, BOB, wait_ms=50)
    for holder in holders:
        holder.commit()
    thread.join()
    pids = sorted(holder.info.backend_pid for holder in holders)
    assert f'"blocked_by": {pids}' in caught.value.diag.message_detail


def test_the_wait_is_bounded(admin, connect):
    admit(admin, 1)
    enter(connect())
    admin.execute("SET statement_timeout = '10s'")  # or else another SQLSTATE
    started = time.monotonic()
    with refused(ADMISSION_BLOCKED):
        admit(admin, 2, BOB, wait_ms=400)
    assert time.monotonic() - started >= 0.4


@pytest.mark.parametrize("wait_ms", [-5, 0])
def test_who_may_not_wait_does_not(admin, connect, wait_ms):
    # The holder waits for the session that asks: were that to wait as well, it would be a deadlock,
    # and another SQLSTATE; no clock is asked.
    admit(admin, 1)
    holder = connect()
    enter(holder)
    admin.execute(HELD, ("another",))
    thread = threading.Thread(target=holder.execute, args=(HELD, ("another",)))
    thread.start()
    try:
        wait_until_blocked(admin, holder.info.backend_pid)
        admin.execute("SET deadlock_timeout = '1ms'")
        admin.execute("SET statement_timeout = '10s'")  # for any other sort of waiting
        with refused(ADMISSION_BLOCKED):
            admit(admin, 2, BOB, wait_ms=wait_ms)
    finally:
        admin.execute("SELECT pg_advisory_unlock_all()")
        thread.join()


@pytest.mark.parametrize("wait_ms", [0, 1])
def test_who_may_not_wait_is_not_refused_at_once_for_a_table(admin, connect, wait_ms):
    # As an autovacuum locks it for a moment.
    connect().execute("LOCK TABLE fencing.fence IN ACCESS EXCLUSIVE MODE")
    started = time.monotonic()
    with pytest.raises(psycopg.errors.LockNotAvailable):
        admit(admin, 1, wait_ms=wait_ms)
    assert time.monotonic() - started >= 0.1


def test_an_admission_waits_for_the_holders_transaction_to_end(admin, connect):
    admit(admin, 1)
    holder = connect()
    enter(holder)
    successor = connect(autocommit=True)
    thread = threading.Thread(target=admit, args=(successor, 2, BOB), kwargs={"wait_ms": 10_000})
    thread.start()
    wait_until_blocked(admin, successor.info.backend_pid)
    assert mark(admin) == (1, ALICE)
    holder.commit()
    thread.join()
    assert mark(admin) == (2, BOB)


def test_two_that_wait_see_what_was_admitted_before_them(admin, connect):
    connections = [connect(autocommit=True) for _ in range(2)]
    blocker = connect()
    blocker.execute("SELECT pg_advisory_xact_lock(fencing.lock_key(%s))", (ACCOUNT,))
    outcomes: list[object] = []

    def try_it(connection: psycopg.Connection, holder: str) -> None:
        try:
            outcomes.append(admit(connection, 1, holder, wait_ms=10_000))
        except psycopg.Error as error:
            outcomes.append(error.sqlstate)

    threads = [
        threading.Thread(target=try_it, args=pair)
        for pair in zip(connections, (ALICE, BOB), strict=True)
    ]
    for thread, connection in zip(threads, connections, strict=True):
        thread.start()
        wait_until_blocked(admin, connection.info.backend_pid)
    blocker.commit()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) == ["True", STALE]


def test_an_admission_leaves_no_lock_behind(admin):
    admit(admin, 1)
    row = admin.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    ).fetchone()
    assert row == (0,)


def test_the_mark_rises_by_at_most_2_to_the_40_at_a_time(admin):
    admit(admin, 10)
    with refused(IMPLAUSIBLE_TOKEN) as caught:
        admit(admin, 10 + 2**40 + 1, BOB)
    assert '"current_token": 10' in caught.value.diag.message_detail
    assert admit(admin, 10 + 2**40, BOB) is True


def test_a_resource_without_a_fence_may_start_anywhere(admin):
    assert admit(admin, 2**52) is True


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_transaction_that_would_read_an_old_snapshot_is_refused(connect, admin, level):
    connection = connect()
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    with refused(ADMISSION_ISOLATION, match=level):
        admit(connection, 1)
    connection.rollback()
    assert mark(admin) is None


@pytest.mark.parametrize(
    ("default", "during"),
    [
        ("off", "on"),
        ("local", "on"),
        ("remote_write", "on"),
        ("on", "on"),
        ("remote_apply", "remote_apply"),
    ],
)
def test_an_admission_survives_a_crash_whatever_the_default_is(connect, default, during):
    connection = connect(options=f"-c synchronous_commit={default}")
    admit(connection, 1)
    assert setting(connection, "synchronous_commit") == during
    connection.commit()
    assert setting(connection, "synchronous_commit") == default


def test_its_lock_timeout_ends_with_the_transaction(connect):
    connection = connect(options="-c lock_timeout=77")
    admit(connection, 1, wait_ms=500)
    connection.commit()
    assert setting(connection, "lock_timeout") == "77ms"


def test_a_rolled_back_admission_admits_nothing(connect, admin):
    connection = connect()
    admit(connection, 1)
    connection.rollback()
    assert mark(admin) is None


@pytest.mark.parametrize("missing", ["resource", "token", "holder", "owner"])
def test_nothing_may_be_null(admin, missing):
    values = {"resource": "r", "token": 1, "holder": "h", "owner": "o", missing: None}
    with pytest.raises(psycopg.errors.NotNullViolation):
        admin.execute(
            "SELECT fencing.admit(%(resource)s, %(token)s, %(holder)s, %(owner)s, 100)", values
        )

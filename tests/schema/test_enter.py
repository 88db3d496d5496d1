"""fencing.enter: presenting leases, in what order it locks, and the limits it sets."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema.names import CLAIM_SETTING, NOT_ADMITTED, STALE
from tests.schema.sql import (
    ACCOUNT,
    ALICE,
    BOB,
    admit,
    enter,
    refused,
    setting,
    wait_until_blocked,
)

if TYPE_CHECKING:
    from tests.schema.conftest import Connect

LIMITS = (
    "idle_in_transaction_session_timeout",
    "statement_timeout",
    "transaction_timeout",
    "client_connection_check_interval",
)


def skip_unless_set(session: psycopg.Connection, name: str) -> None:
    """Entry sets one limit on a transaction from PostgreSQL 17 on, and before two of others."""
    newer = session.info.server_version >= 170000
    if name != "client_connection_check_interval" and newer != (name == "transaction_timeout"):
        pytest.skip("not what bounds a transaction in this version")


@pytest.fixture(params=["tcp", "socket"])
def session(
    connect: Connect, admin: psycopg.Connection, request: pytest.FixtureRequest
) -> psycopg.Connection:
    """A connection whose transactions may enter: token 1 of Alice is admitted."""
    admit(admin, 1)
    if request.param == "tcp":
        return connect()
    directory = str(setting(admin, "unix_socket_directories")).split(",")[0]
    if not Path(directory, f".s.PGSQL.{admin.info.port}").exists():
        pytest.skip("the server's socket is not on this machine")
    return connect(host=directory)


def test_a_current_lease_is_noted_for_this_transaction(session):
    enter(session)
    assert ACCOUNT.encode().hex() in setting(session, CLAIM_SETTING)
    session.commit()
    assert not setting(session, CLAIM_SETTING)


def test_entering_takes_no_transaction_id(session):
    enter(session)
    assert session.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)


@pytest.mark.parametrize("lease", [("unknown", 1, ALICE), (ACCOUNT, 2, ALICE), (ACCOUNT, 2, BOB)])
def test_a_lease_that_was_never_admitted_is_told_apart(session, lease):
    with refused(NOT_ADMITTED):
        enter(session, lease)


@pytest.mark.parametrize(("token", "holder"), [(1, ALICE), (1, BOB), (3, BOB)])
def test_an_overtaken_lease_is_stale(session, admin, token, holder):
    admit(admin, 3)
    with refused(STALE) as caught:
        enter(session, (ACCOUNT, token, holder))
    assert '"current_token": 3' in caught.value.diag.message_detail


def test_one_stale_lease_of_several_refuses_them_all(session, admin):
    admit(admin, 1, resource="other")
    admit(admin, 2, BOB)
    with refused(STALE):
        enter(session, ("other", 1, ALICE), (ACCOUNT, 1, ALICE))
    session.rollback()
    assert not setting(session, CLAIM_SETTING)


def test_entering_twice_presents_both(session, admin):
    admit(admin, 1, resource="other")
    enter(session)
    enter(session, (ACCOUNT, 1, ALICE), ("other", 1, ALICE))
    claim = setting(session, CLAIM_SETTING)
    assert claim.count("=") == 2


def test_locks_are_taken_in_one_order_whatever_the_order_of_the_leases(connect, admin):
    names = [f"account:{number}" for number in range(8)]
    for name in names:
        admit(admin, 1, resource=name)
    ordered = [
        name
        for (name,) in admin.execute(
            "SELECT n FROM unnest(%s::text[]) AS n ORDER BY fencing.lock_key(n)", (names,)
        )
    ]
    # The third lock is taken: whoever goes in order holds the first two while it waits.
    blocker = connect()
    blocker.execute("SELECT pg_advisory_xact_lock(fencing.lock_key(%s))", (ordered[2],))
    for leases in (ordered, ordered[::-1], names):
        session = connect()
        thread = threading.Thread(
            target=_enter_and_fail, args=(session, [(name, 1, ALICE) for name in leases])
        )
        thread.start()
        wait_until_blocked(admin, session.info.backend_pid)
        held = admin.execute(
            "SELECT count(*) FILTER (WHERE granted), count(*) FROM pg_locks "
            "JOIN unnest(%s::text[]) AS n "
            "ON ((classid::bigint << 32) | objid::bigint) = fencing.lock_key(n) "
            "WHERE locktype = 'advisory' AND pid = %s",
            (names, session.info.backend_pid),
        ).fetchone()
        session.cancel_safe()
        thread.join()
        session.rollback()
        assert held == (2, 3)


def _enter_and_fail(session: psycopg.Connection, leases: list[tuple[str, int, str]]) -> None:
    with pytest.raises(psycopg.errors.QueryCanceled):
        enter(session, *leases)


def test_entry_waits_for_an_admission_in_progress_and_sees_it(session, connect, admin):
    successor = connect()
    admit(successor, 2, BOB)
    outcome: list[str | None] = []

    def try_it() -> None:
        with pytest.raises(psycopg.Error) as caught:
            enter(session)
        outcome.append(caught.value.sqlstate)

    thread = threading.Thread(target=try_it)
    thread.start()
    wait_until_blocked(admin, session.info.backend_pid)
    successor.commit()
    thread.join()
    assert outcome == [STALE]


@pytest.mark.parametrize("own", ["0", "1h"])
def test_an_entry_that_has_waited_is_like_any_other(session, connect, admin, own):
    successor = connect()
    admit(successor, 2, BOB)
    session.execute(f"SET lock_timeout = '{own}'")
    session.commit()
    thread = threading.Thread(target=enter, args=(session,), kwargs={"limit_ms": 20_000})
    thread.start()
    wait_until_blocked(admin, session.info.backend_pid)
    time.sleep(0.2)  # of its trust
    successor.rollback()
    thread.join()
    assert setting(session, "lock_timeout") == own
    limit = "transaction_timeout" if session.info.server_version >= 170000 else "statement_timeout"
    assert 0 < _milliseconds(session, limit) <= 19_800
    held = admin.execute(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s AND granted "
        "AND (classid::bigint << 32) | objid::bigint "
        "IN (fencing.lock_key(%s), fencing.identity_key(%s))",
        (session.info.backend_pid, ACCOUNT, ACCOUNT),
    ).fetchone()
    assert held == (2,)


def test_a_wait_for_the_table_is_taken_off_the_trust_as_well(session, connect, admin):
    """As for an upgrade, or VACUUM FULL: no admission is in progress, and yet it takes time."""
    owner = connect()
    owner.execute("LOCK TABLE fencing.fence IN ACCESS EXCLUSIVE MODE")
    thread = threading.Thread(target=enter, args=(session,), kwargs={"limit_ms": 20_000})
    thread.start()
    wait_until_blocked(admin, session.info.backend_pid)
    time.sleep(0.2)  # of its trust
    owner.rollback()
    thread.join()
    limit = "transaction_timeout" if session.info.server_version >= 170000 else "statement_timeout"
    assert 0 < _milliseconds(session, limit) <= 19_800


@pytest.mark.parametrize("own", ["0", "1h"])
def test_the_wait_ends_with_the_trust(session, connect, own):
    admit(connect(), 2, BOB)
    session.execute(f"SET LOCAL lock_timeout = '{own}'")
    started = time.monotonic()
    with pytest.raises(psycopg.errors.LockNotAvailable):
        enter(session, limit_ms=300)
    assert time.monotonic() - started > 0.25


def test_the_wait_ends_with_the_users_own_lock_timeout_if_that_is_shorter(session, connect):
    admit(connect(), 2, BOB)
    session.execute("SET LOCAL lock_timeout = '100ms'")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        enter(session, limit_ms=3_600_000)


@pytest.mark.parametrize("own", ["0", "77ms", "1min"])
def test_the_users_lock_timeout_is_restored(session, own):
    session.execute(f"SET lock_timeout = '{own}'")
    enter(session, limit_ms=5000)
    assert setting(session, "lock_timeout") == own


def _milliseconds(session: psycopg.Connection, name: str) -> float | None:
    row = session.execute(
        "SELECT EXTRACT(epoch FROM CAST(current_setting(%s, true) AS interval)) * 1000", (name,)
    ).fetchone()
    assert row is not None
    return None if row[0] is None else float(row[0])


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_is_the_trust_that_is_left(session, name):
    skip_unless_set(session, name)
    before = setting(session, name)
    limit = 499 if name == "client_connection_check_interval" else 60_000
    enter(session, limit_ms=limit)
    assert limit * 0.75 <= _milliseconds(session, name) <= limit
    session.commit()
    assert setting(session, name) == before


def test_the_client_is_looked_after_twice_a_second_at_least(session):
    enter(session, limit_ms=60_000)
    assert _milliseconds(session, "client_connection_check_interval") == 500


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("own", ["shorter", "3h", "1d"])
def test_a_limit_is_never_longer_than_the_users_own(session, name, own):
    skip_unless_set(session, name)
    if own == "shorter":  # and no shorter than what is done under those that end something
        own = "100ms" if name == "client_connection_check_interval" else "1min"
    session.execute(f"SET {name} = '{own}'")
    session.commit()
    enter(session, limit_ms=7_200_000)
    most = {"100ms": 100, "1min": 60_000, "3h": 7_200_000, "1d": 7_200_000}[own]
    if name == "client_connection_check_interval":
        most = min(most, 500)
    else:
        assert _milliseconds(session, "client_connection_check_interval") == 500
    assert most * 0.99 <= _milliseconds(session, name) <= most
    session.rollback()
    assert setting(session, name) == own


@pytest.mark.parametrize("name", LIMITS)
def test_entering_again_never_lengthens_a_limit(session, name):
    skip_unless_set(session, name)
    enter(session, limit_ms=20_000)
    enter(session, limit_ms=60_000)
    assert _milliseconds(session, name) <= 20_000


@pytest.mark.parametrize("limit_ms", [0, -5])
def test_no_trust_left_means_one_millisecond_not_no_limit(session, limit_ms):
    with pytest.raises(psycopg.Error) as caught:  # noqa: PT012 - either statement may be ended
        enter(session, limit_ms=limit_ms)  # may be ended by its own limit already
        session.execute("SELECT pg_sleep(5)")
    # Whichever limit comes first: idle, statement or transaction. Some close the connection, and
    # who is sending just then may not hear why.
    sqlstate = caught.value.sqlstate
    assert sqlstate in {"25P03", "25P04", "57014"} or (sqlstate is None and session.closed)


def test_without_a_limit_only_a_client_that_is_gone_ends_it(session):
    before = [setting(session, name) for name in LIMITS[:-1]]
    enter(session, limit_ms=None)
    assert [setting(session, name) for name in LIMITS[:-1]] == before
    assert _milliseconds(session, "client_connection_check_interval") == 500
    if setting(session, "tcp_user_timeout") != "0":  # over TCP
        assert setting(session, "tcp_user_timeout") == "300000"


def test_an_idle_transaction_ends_with_its_trust_and_lets_its_successor_in(session, admin):
    started = time.monotonic()
    enter(session, limit_ms=300)
    assert admit(admin, 2, BOB, wait_ms=10_000) is True
    assert time.monotonic() - started > 0.25


def test_a_transaction_that_keeps_busy_is_ended_from_17_on(session, admin):
    if session.info.server_version < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    session.execute("SET LOCAL transaction_timeout = '1h'")  # running, and to be shortened
    enter(session, limit_ms=400)
    started = time.monotonic()
    with pytest.raises(psycopg.Error) as caught:  # noqa: PT012 - one of them is ended
        while time.monotonic() - started < 10:
            session.execute("SELECT pg_sleep(0.05)")
    # As above: who is sending just then may not hear why.
    sqlstate = caught.value.sqlstate
    assert sqlstate == "25P04" or (sqlstate is None and session.closed)


@pytest.mark.parametrize(
    "leases", ["x", "zz=1.a", "61", "61=", "61=x.a", "6=1.a", "61=1.a  61=1.a"]
)
def test_malformed_leases_are_refused(session, leases):
    with pytest.raises(psycopg.Error):
        enter(session, leases)
    session.rollback()
    assert not setting(session, CLAIM_SETTING)

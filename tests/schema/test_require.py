"""The guard of a table: what it demands of a claim. Each refusal leaves the data as it was."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema import ddl
from fencing.schema.names import CLAIM_SETTING, NOT_ADMITTED, STALE, UNFENCED
from tests.schema.sql import (
    ACCOUNT,
    ALICE,
    BOB,
    admit,
    enter,
    refused,
    run,
    setting,
    wait_until_blocked,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.schema.conftest import Connect

WRITES = {
    "insert": "INSERT INTO accounts VALUES (44, 0)",
    "update": "UPDATE accounts SET balance = 0 WHERE id = 42",
    "delete": "DELETE FROM accounts WHERE id = 42",
    "truncate": "TRUNCATE accounts",
    "copy": "COPY accounts FROM STDIN",
    "merge": "MERGE INTO accounts USING (SELECT 42 AS k) AS s ON id = k "
    "WHEN MATCHED THEN UPDATE SET balance = 0",
    "cte": "WITH w AS (UPDATE accounts SET balance = 0 WHERE id = 42 RETURNING id) SELECT * FROM w",
    "upsert": "INSERT INTO accounts VALUES (42, 0) ON CONFLICT (id) DO UPDATE SET balance = 0",
}
DEBIT = "UPDATE accounts SET balance = balance - 10 WHERE id = 42"


@pytest.fixture
def session(accounts: psycopg.Connection, connect: Connect) -> Iterator[psycopg.Connection]:
    """A connection to a guarded table; Alice's token 1 is admitted for account 42.

    However the test ends, nothing of what was refused may have been written.
    """
    admit(accounts, 1)
    before = _rows(accounts)
    connection = connect()
    yield connection
    connection.rollback()
    assert _rows(accounts) == before


def _rows(connection: psycopg.Connection) -> list[tuple[int, int]]:
    return connection.execute("SELECT id, balance FROM accounts ORDER BY id").fetchall()


def _write(connection: psycopg.Connection, how: str) -> None:
    cursor = connection.cursor()
    if how == "copy":
        with cursor.copy(WRITES[how]) as copy:
            copy.write_row((44, 0))
    else:
        cursor.execute(WRITES[how])


@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.parametrize("how", WRITES)
def test_an_unfenced_write_is_refused(session, how, role):
    session.execute(f"SET session_replication_role = {role}")
    session.commit()
    with refused(UNFENCED, match=r"unfenced write.*accounts"):
        _write(session, how)


@pytest.mark.parametrize("how", [how for how in WRITES if how != "truncate"])
def test_a_stale_write_under_an_old_snapshot_is_refused(session, accounts, how):
    """As if entry had not held the advisory lock: the row lock alone must refuse."""
    resource = "account:44" if how in {"insert", "copy"} else ACCOUNT
    if resource != ACCOUNT:
        admit(accounts, 1, resource=resource)
    session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    enter(session, (resource, 1, ALICE))
    _overtake_in_spite_of_the_advisory_lock(accounts, resource)
    with refused("40001"):
        _write(session, how)


@pytest.mark.parametrize("how", [how for how in WRITES if how != "truncate"])
def test_a_stale_write_is_refused_with_the_mark(session, accounts, how):
    resource = "account:44" if how in {"insert", "copy"} else ACCOUNT
    if resource != ACCOUNT:
        admit(accounts, 1, resource=resource)
    enter(session, (resource, 1, ALICE))
    _overtake_in_spite_of_the_advisory_lock(accounts, resource)
    with refused(STALE) as caught:
        _write(session, how)
    assert '"current_token": 2' in caught.value.diag.message_detail


def _overtake_in_spite_of_the_advisory_lock(owner: psycopg.Connection, resource: str) -> None:
    owner.execute(
        "UPDATE fencing.fence SET token = 2, holder = %s WHERE resource = %s", (BOB, resource)
    )


def test_a_fenced_write_is_accepted_and_locks_its_fence(session, accounts, connect):
    enter(session)
    session.execute(DEBIT)
    with connect() as other, pytest.raises(psycopg.errors.LockNotAvailable):
        other.execute("SELECT FROM fencing.fence FOR UPDATE NOWAIT")


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_write_waits_for_a_fence_that_is_being_moved_on(session, accounts, connect, end):
    """It is compared as it is when the lock is there, not as it was when the statement began."""
    enter(session)
    owner = connect()
    owner.execute(
        "UPDATE fencing.fence SET token = 2, holder = %s WHERE resource = %s", (BOB, ACCOUNT)
    )
    outcome: list[str | None] = []

    def write() -> None:
        try:
            session.execute(DEBIT)
        except psycopg.Error as error:
            outcome.append(error.sqlstate)
        else:
            outcome.append(None)

    thread = threading.Thread(target=write)
    thread.start()
    wait_until_blocked(accounts, session.info.backend_pid)
    owner.execute(end)
    thread.join()
    assert outcome == [STALE if end == "COMMIT" else None]


@pytest.mark.parametrize("other", [0, 1, 2])
@pytest.mark.parametrize(
    "how", ["insert", "update", "delete", "copy", "merge", "upsert", "nothing"]
)
def test_one_query_accepts_what_touches_one_resource_that_is_claimed(session, accounts, how, other):
    """Whichever lease it is of several."""
    resource = "account:44" if how in ("insert", "copy") else ACCOUNT
    leases = [(resource, 1, ALICE), *((f"other:{n}", 1, ALICE) for n in range(other))]
    for name, *_ in leases:
        admit(accounts, 1, resource=name)
    session.execute("SET track_functions = 'all'")
    enter(session, *reversed(leases))
    if how == "nothing":
        session.execute("UPDATE accounts SET balance = 0 WHERE id = 45")
    else:
        _write(session, how)
    assert _calls_of_require(session) == 0
    with refused(UNFENCED), session.transaction():
        session.execute("UPDATE accounts SET balance = 0 WHERE id IN (42, 43)")


def test_more_than_one_resource_is_looked_at_one_by_one(session, accounts):
    admit(accounts, 1, resource="account:43")
    session.execute("SET track_functions = 'all'")
    enter(session, (ACCOUNT, 1, ALICE), ("account:43", 1, ALICE))
    session.execute("UPDATE accounts SET balance = 0")
    assert _calls_of_require(session) == 1


@pytest.mark.parametrize(
    "how",
    [
        "INSERT INTO many SELECT n + 3000 FROM generate_series(1, 3000) AS n",
        "UPDATE many SET id = id",
        "DELETE FROM many",
    ],
)
def test_many_fences_are_locked_in_the_order_of_their_names(session, accounts, connect, how):
    """Not in that of their hashes: a maintenance would wait for us, and we for it."""
    accounts.execute("CREATE TABLE many AS SELECT n AS id FROM generate_series(1, 3000) AS n")
    run(accounts, ddl.fence_table("many", "many:{id}"))
    accounts.execute(
        "INSERT INTO fencing.fence (resource, token, holder, owner) "
        "SELECT concat('many:', n), 1, %s, 'test' FROM generate_series(1, 6000) AS n",
        (ALICE,),
    )
    enter(session, *((f"many:{n}", 1, ALICE) for n in range(1, 6001)))
    owner = connect()
    middle = "many:4500" if how.startswith("INSERT") else "many:1500"
    owner.execute("UPDATE fencing.fence SET token = 2 WHERE resource = %s", (middle,))
    thread = threading.Thread(target=session.execute, args=(how,))
    thread.start()
    wait_until_blocked(accounts, session.info.backend_pid)
    free = accounts.execute(
        "SELECT resource FROM fencing.fence WHERE resource > %s FOR UPDATE SKIP LOCKED", (middle,)
    ).fetchall()
    owner.rollback()
    thread.join()
    assert len(free) == sum(f"many:{n}" > middle for n in range(1, 6001))


def _calls_of_require(connection: psycopg.Connection) -> int:
    """So many there were in this transaction."""
    row = connection.execute(
        "SELECT coalesce(pg_stat_get_xact_function_calls("
        "CAST('fencing.require(text, text[])' AS regprocedure)), 0)"
    ).fetchone()
    assert row is not None
    return row[0]


def test_an_update_that_moves_a_row_needs_both_resources(session, accounts):
    admit(accounts, 1, resource="account:44")
    move = "UPDATE accounts SET id = 44 WHERE id = 42"
    for leases in ([(ACCOUNT, 1, ALICE)], [("account:44", 1, ALICE)]):
        enter(session, *leases)
        with refused(UNFENCED):
            session.execute(move)
        session.rollback()
    enter(session, (ACCOUNT, 1, ALICE), ("account:44", 1, ALICE))
    session.execute(move)


def test_one_row_of_another_resource_refuses_the_whole_statement(session):
    enter(session)
    with refused(UNFENCED, match="account:43"):
        session.execute("UPDATE accounts SET balance = 0")


def test_a_write_that_touches_no_row_needs_no_lease(session):
    session.execute("UPDATE accounts SET balance = 0 WHERE id = -1")
    session.execute("DELETE FROM accounts WHERE false")
    session.execute("INSERT INTO accounts SELECT 1, 1 WHERE false")


def test_a_row_whose_resource_is_null_is_refused(session, accounts):
    accounts.execute("CREATE TABLE notes (owner_id bigint, note text)")
    run(accounts, ddl.fence_table("notes", "account:{owner_id}"))
    enter(session)
    session.execute("INSERT INTO notes VALUES (42, 'fine')")
    with refused(UNFENCED, match="NULL"):
        session.execute("INSERT INTO notes VALUES (NULL, 'whose?')")


@pytest.mark.parametrize(("held", "other"), [("a", "A"), ("A", "a")])
def test_names_that_a_collation_calls_equal_are_two_resources(session, accounts, held, other):
    try:
        accounts.execute(
            "CREATE COLLATION any_case "
            "(provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
        )
    except psycopg.errors.FeatureNotSupported:
        pytest.skip("a server without ICU")
    accounts.execute("CREATE TABLE docs (name text COLLATE any_case)")
    run(accounts, ddl.fence_table("docs", "doc:{name}"))
    admit(accounts, 1, resource=f"doc:{held}")
    enter(session, (f"doc:{held}", 1, ALICE))
    session.execute("INSERT INTO docs VALUES (%s)", (held,))
    for write in ("INSERT INTO docs VALUES ('a'), ('A')", f"UPDATE docs SET name = '{other}'"):
        with refused(UNFENCED, match=f'"doc:{other}"'), session.transaction():
            session.execute(write.encode())


def test_a_constant_resource_covers_the_table_and_its_truncate(session, accounts):
    accounts.execute("CREATE TABLE ledger (id int, entry text)")
    run(accounts, ddl.fence_table("ledger", "ledger"))
    admit(accounts, 1, resource="ledger")
    with refused(UNFENCED):
        session.execute("TRUNCATE ledger")
    session.rollback()
    enter(session, ("ledger", 1, ALICE))
    session.execute("INSERT INTO ledger VALUES (1, 'x')")
    session.execute("TRUNCATE ledger")


def test_no_lease_covers_the_truncate_of_many_resources(session):
    enter(session)
    with refused(UNFENCED, match="TRUNCATE"):
        session.execute("TRUNCATE accounts")


def test_truncate_cascade_does_not_go_round_the_guard(session, accounts):
    accounts.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
    accounts.execute("CREATE TABLE children (parent_id bigint REFERENCES parents)")
    run(accounts, ddl.fence_table("children", "account:{parent_id}"))
    with refused(UNFENCED, match="children"):
        session.execute("TRUNCATE parents CASCADE")


GARBAGE = [
    "",
    " ",
    "x",
    "{stamp}",
    "{stamp} ",
    "{stamp}={good}",
    "{stamp}{good}",
    " {good}",
    "{good}",
    "0.0 {good}",
    "{stamp}0 {good}",
    "{stamp} {hex}",
    "{stamp} {hex}=",
    "{stamp} {hex}=.",
    "{stamp} {hex}=1",
    "{stamp} {hex}=1.",
    "{stamp} {hex}=x.y",
    "{stamp} {hex}=.{holder}",
    "{stamp} {hex}=NULL.{holder}",
    "{stamp} {hex}=01.{holder}",
    "{stamp} {hex}= 1.{holder}",
    "{stamp} {hex}=1.{holder}x",
    "{stamp} {hex}=1.{holder}=",
    "{stamp} {hex}=1 .{holder}",
    "{stamp} {hex}=2.{holder}",
    "{stamp} {hex}=-1.{holder}",
    "{stamp} {hex}=99999999999999999999.{holder}",
    "{stamp} {hex}=1.{HOLDER}",
    "{stamp} {hex}=1.%",
    "{stamp} {HEX}=1.{holder}",
    "{stamp} x{good}",
    "{stamp} {hex}00=1.{holder}",
    "{stamp} {hex}=0.x {good}",
    "{stamp}\t{good}",
    "{stamp}\n{good}",
]


@pytest.mark.parametrize("claim", GARBAGE)
def test_a_claim_that_is_not_exactly_right_is_refused(session, claim):
    """Written by hand under the stamp of this very transaction: the worst case."""
    code = ACCOUNT.encode().hex()
    claim = claim.replace("{good}", f"{code}=1.{ALICE}").replace("{hex}", code)
    claim = claim.replace("{HEX}", code.upper()).replace("{holder}", ALICE)
    claim = claim.replace("{HOLDER}", ALICE.upper())
    enter(session)
    stamp = setting(session, CLAIM_SETTING).partition(" ")[0]
    session.execute(
        "SELECT set_config(%s, %s, true)", (CLAIM_SETTING, claim.replace("{stamp}", stamp))
    )
    with pytest.raises(psycopg.Error) as caught:
        session.execute(DEBIT)
    assert caught.value.sqlstate in {UNFENCED, STALE, NOT_ADMITTED}


def test_the_claim_that_entry_wrote_is_exactly_right(session):
    """The control of the test above."""
    enter(session)
    claim = setting(session, CLAIM_SETTING)
    session.execute("SELECT set_config(%s, '', true)", (CLAIM_SETTING,))
    session.execute("SELECT set_config(%s, %s, true)", (CLAIM_SETTING, claim))
    session.execute(DEBIT)


@pytest.mark.parametrize(
    ("claimed", "sqlstate"), [(f"1.{ALICE}", NOT_ADMITTED), ("1.", NOT_ADMITTED), (".", UNFENCED)]
)
def test_a_claim_whose_fence_is_missing_is_refused(session, claimed, sqlstate):
    enter(session)
    stamp = setting(session, CLAIM_SETTING).partition(" ")[0]
    code = b"account:43".hex()
    session.execute("SELECT set_config(%s, %s, true)", (CLAIM_SETTING, f"{stamp} {code}={claimed}"))
    with refused(sqlstate):
        session.execute("UPDATE accounts SET balance = 0 WHERE id = 43")


def test_a_claim_that_leaked_into_the_next_transaction_is_refused(session):
    enter(session)
    session.execute(
        "SELECT set_config(%s, current_setting(%s), false)", (CLAIM_SETTING, CLAIM_SETTING)
    )
    session.commit()
    assert ALICE in setting(session, CLAIM_SETTING)
    with refused(UNFENCED):
        session.execute(DEBIT)


def test_a_claim_of_another_backend_is_refused(session, connect):
    enter(session)
    other = connect()
    other.execute(
        "SELECT set_config(%s, %s, true)", (CLAIM_SETTING, setting(session, CLAIM_SETTING))
    )
    with refused(UNFENCED):
        other.execute(DEBIT)


def test_the_stamp_is_of_this_backend_and_this_transaction(accounts, connect):
    """Two backends may begin in one microsecond, and one backend begins many times."""
    query = (
        "SELECT fencing.stamp(), concat(pg_backend_pid(), '.', "
        "CAST(EXTRACT(epoch FROM now()) * 1000000 AS bigint))"
    )
    stamps = set()
    for connection in (accounts, accounts, connect()):
        stamp, expected = connection.execute(query).fetchone()
        assert stamp == expected
        stamps.add(stamp)
    assert len(stamps) == 3


def test_a_claim_ends_with_its_savepoint(session):
    session.execute("SAVEPOINT before")
    enter(session)
    session.execute("ROLLBACK TO before")
    with refused(UNFENCED):
        session.execute(DEBIT)


def test_a_refusal_caught_by_a_savepoint_leaves_the_transaction_usable(session, accounts):
    enter(session)
    with refused(UNFENCED), session.transaction():
        session.execute("UPDATE accounts SET balance = 0 WHERE id = 43")
    session.execute(DEBIT)
    assert _rows(session) == [(42, 90), (43, 100)]

"""Pruning: what a fence kept is kept by its floor, whoever comes in between."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest

from fencing.schema import ddl
from fencing.schema.names import ADMISSION_ISOLATION, FENCE_KEPT, STALE, UNFIT_USE
from tests.retention.conftest import age, neighbours, prune, tokens
from tests.schema.sql import ALICE, BOB, admit, enter, refused, run, wait_until_blocked


def test_an_old_fence_is_removed_and_an_older_token_is_refused_as_before(owner):
    admit(owner, 7, resource="a")
    age(owner)
    assert prune(owner) == (1, 0, None)
    assert tokens(owner) == {}
    for token in (1, 6, 7):
        with refused(STALE) as caught:
            admit(owner, token, BOB, resource="a")
        assert '"current_token": 7' in caught.value.diag.message_detail
    assert owner.execute("SELECT fencing.mark('a')").fetchone() == (7,)
    assert admit(owner, 8, BOB, resource="a")


def test_the_holder_of_a_pruned_fence_is_refused(owner):
    """Its lease has been kept alive for longer than the age; that is what the age is for."""
    admit(owner, 7, resource="a")
    age(owner)
    prune(owner)
    with refused(STALE), owner.transaction():
        enter(owner, ("a", 7, ALICE))


def test_a_claim_that_was_made_before_keeps_its_fence(owner, connect):
    owner.execute("CREATE TABLE t (id text)")
    run(owner, ddl.fence_table("t", "{id}"))
    admit(owner, 7, resource="a")
    age(owner)
    holder = connect(autocommit=False)
    enter(holder, ("a", 7, ALICE))
    assert prune(owner) == (0, 1, None)
    holder.execute("INSERT INTO t VALUES ('a')")
    assert prune(owner) == (0, 1, None)
    holder.commit()
    assert prune(owner) == (1, 0, None)


def test_a_fence_that_was_used_lately_stays(owner):
    for resource in ("old", "new"):
        admit(owner, 7, resource=resource)
    age(owner, "old")
    assert prune(owner) == (1, 0, None)
    assert tokens(owner) == {"new": 7}
    assert prune(owner, older_than="1000 years") == (0, 0, None)


def test_a_new_resource_of_the_same_floor_begins_above_it(owner):
    first, second = neighbours(owner)
    admit(owner, 7, resource=first)
    age(owner)
    prune(owner)
    with refused(STALE):
        admit(owner, 7, resource=second)
    assert admit(owner, 8, resource=second)
    (other,) = owner.execute(
        "SELECT r FROM (SELECT concat('r', n) AS r FROM generate_series(1, 100) AS n) AS s "
        "WHERE fencing.bucket(r) <> fencing.bucket(%s) LIMIT 1",
        (first,),
    ).fetchone()
    assert admit(owner, 1, resource=other)


def test_a_floor_is_not_lowered_by_a_fence_with_a_smaller_token(owner):
    first, second = neighbours(owner)
    admit(owner, 7, resource=first)
    admit(owner, 3, resource=second)
    age(owner)
    assert prune(owner)[0] == 2
    for resource in (first, second):
        assert owner.execute("SELECT fencing.mark(%s)", (resource,)).fetchone() == (7,)


def test_a_fence_far_above_its_floor_stays_for_ever(owner):
    """It would take every resource of the floor with it."""
    far = 2**40 + 1
    admit(owner, far, resource="far")
    admit(owner, far - 1, resource="near")
    age(owner)
    assert prune(owner) == (1, 0, None)
    assert tokens(owner) == {"far": far}


def test_batches_meet_every_fence_once(owner):
    names = [f"r{n}" for n in range(25)]
    for name in names:
        admit(owner, 7, resource=name)
    age(owner)
    after, seen = "", []
    while after is not None:
        pruned, busy, after = prune(owner, after, examine=10)
        seen.append(pruned + busy)
    assert seen == [10, 10, 5]
    assert tokens(owner) == {}


def test_of_batches_that_end_with_the_last_fence_one_more_finds_nothing(owner):
    admit(owner, 7, resource="a")
    age(owner)
    pruned, busy, after = prune(owner, examine=1)
    assert (pruned, busy, after) == (1, 0, "a")
    assert prune(owner, after, examine=1) == (0, 0, None)


@pytest.mark.parametrize("older_than", ["59 minutes", "0", "-1 day", None])
def test_an_age_that_a_lease_may_have_is_refused(owner, older_than):
    admit(owner, 7, resource="a")
    age(owner)
    with refused(UNFIT_USE, match="a lease may live that long"):
        prune(owner, older_than=older_than)
    assert tokens(owner) == {"a": 7}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_another_isolation_level_is_refused(owner, level):
    with refused(ADMISSION_ISOLATION), owner.transaction():
        owner.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
        prune(owner)


@pytest.mark.parametrize("role", ["origin", "replica"])
@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM fencing.fence",
        "UPDATE fencing.floor SET token = 6",
        "UPDATE fencing.floor SET bucket = -1 WHERE bucket = 0",
        "DELETE FROM fencing.floor",
        "TRUNCATE fencing.floor",
    ],
)
def test_by_hand_nothing_that_is_kept_is_lost(owner, role, statement):
    first, second = neighbours(owner)
    admit(owner, 7, resource=first)
    age(owner)
    prune(owner)
    admit(owner, 9, resource=second)
    owner.execute(f"SET session_replication_role = {role}".encode())
    with refused(FENCE_KEPT):
        owner.execute(statement)
    assert owner.execute("SELECT fencing.mark(%s)", (first,)).fetchone() == (7,)


@pytest.mark.parametrize("role", ["origin", "replica"])
def test_by_hand_no_fence_is_made_below_its_floor(owner, role):
    admit(owner, 7, resource="a")
    age(owner)
    prune(owner)
    owner.execute(f"SET session_replication_role = {role}".encode())
    with pytest.raises(psycopg.errors.CheckViolation, match="never_decreases"):
        owner.execute(
            "INSERT INTO fencing.fence (resource, token, holder, owner, previous_token) "
            "VALUES ('a', 7, 'x', 'x', -5)"
        )


class Admission(threading.Thread):
    """An admission that has to wait."""

    def __init__(self, connection, token, holder, resource):
        super().__init__()
        self.connection = connection
        self.arguments = (token, holder, resource)
        self.state: str | None = "unfinished"

    def run(self):
        token, holder, resource = self.arguments
        try:
            admit(self.connection, token, holder, resource=resource, wait_ms=20_000)
            self.state = None
        except psycopg.Error as error:
            self.state = error.sqlstate


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize(("token", "state"), [(5, STALE), (7, STALE), (8, None)])
def test_an_admission_that_meets_a_pruning_is_judged_as_if_it_came_after(
    owner, connect, ends, token, state
):
    admit(owner, 7, resource="a")
    age(owner)
    owner.execute("BEGIN")
    assert prune(owner)[0] == 1
    late = connect()
    admission = Admission(late, token, BOB, "a")
    admission.start()
    if token > 7:
        # An older one is refused at once: the fence is still there for it.
        wait_until_blocked(connect(), late.info.backend_pid)
    else:
        admission.join()
    owner.execute(ends.encode())
    admission.join()
    assert admission.state == state
    assert owner.execute("SELECT fencing.mark('a')").fetchone() == (8 if state is None else 7,)


@pytest.mark.parametrize("ends", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("token", [5, 8])
def test_a_new_resource_waits_for_a_pruning_that_raises_its_floor(owner, connect, ends, token):
    first, second = neighbours(owner)
    admit(owner, 7, resource=first)
    age(owner)
    owner.execute("BEGIN")
    assert prune(owner)[0] == 1
    late = connect()
    admission = Admission(late, token, BOB, second)
    admission.start()
    wait_until_blocked(connect(), late.info.backend_pid)
    owner.execute(ends.encode())
    admission.join()
    assert admission.state == (STALE if token == 5 and ends == "COMMIT" else None)


def test_a_pruning_waits_for_nobody(owner, connect):
    first, second = neighbours(owner)
    admit(owner, 7, resource=first)
    age(owner)
    other = connect(autocommit=False)
    admit(other, 1, resource=second)  # holds the floor's row until it ends
    assert prune(owner) == (0, 1, None)
    other.rollback()
    other.execute("SELECT FROM fencing.fence WHERE resource = %s FOR SHARE", (first,))
    assert prune(owner)[0] == 0
    other.rollback()
    assert prune(owner) == (1, 0, None)


def test_two_prunings_at_a_time_do_not_disturb_each_other(owner, connect):
    for n in range(10):
        admit(owner, 7, resource=f"r{n}")
    age(owner)
    owner.execute("BEGIN")
    assert prune(owner, examine=5)[0] == 5
    assert prune(connect()) == (5, 5, None)
    owner.execute("COMMIT")
    assert tokens(owner) == {}


class Admissions(threading.Thread):
    """Admits resources of its own, and tries what must be refused.

    At least 400 times, and until enough has been pruned meanwhile.
    """

    def __init__(
        self, connection: psycopg.Connection, mine: list[str], seed: int, enough: threading.Event
    ) -> None:
        super().__init__()
        self.enough = enough
        self.connection = connection
        self.marks = dict.fromkeys(mine, 0)
        self.random = random.Random(seed)
        self.wrong: list[str] = []

    def run(self) -> None:
        try:
            for attempt in range(20_000):
                if attempt >= 400 and self.enough.is_set():
                    break
                self.attempt(self.random.choice(list(self.marks)), self.random.randint(-3, 3))
        except Exception as error:  # noqa: BLE001 -- told by the test
            self.wrong.append(repr(error))

    def attempt(self, resource: str, step: int) -> None:
        before = self.marks[resource]
        token = max(1, before + step)
        try:
            admit(self.connection, token, f"{token}", resource=resource, wait_ms=20_000)
        except psycopg.errors.DatabaseError as error:
            if error.sqlstate != STALE:
                raise
            # By the mark, or by a neighbour's that has become the floor.
            (mark,) = self.connection.execute("SELECT fencing.mark(%s)", (resource,)).fetchone()
            if mark < max(before, token):
                self.wrong.append(f"{resource}: {token} was refused, and {mark} is the mark")
            self.marks[resource] = mark
        else:
            if token < before:
                self.wrong.append(f"{resource}: {token} was admitted after {before}")
            self.marks[resource] = token


@pytest.mark.parametrize("seed", range(3))
def test_beside_admissions_no_mark_ever_falls(owner, connect, seed):
    names = neighbours(owner, 12)
    enough = threading.Event()
    threads = [Admissions(connect(), names[n::3], seed * 10 + n, enough) for n in range(3)]
    for thread in threads:
        thread.start()
    pruned = 0
    while any(thread.is_alive() for thread in threads):
        # Without waiting: who admits goes first.
        owner.execute(
            "UPDATE fencing.fence AS f SET admitted_at = '2000-01-01' WHERE f.ctid = ANY (ARRAY("
            "    SELECT g.ctid FROM fencing.fence AS g FOR UPDATE SKIP LOCKED))"
        )
        pruned += prune(owner)[0]
        if pruned > 20:
            enough.set()
    assert [each for thread in threads for each in thread.wrong] == []
    assert pruned > 20

"""A pruning, step by step beside the holders and admissions of what it prunes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema.names import STALE
from tests.schema.sql import ACCOUNT, ALICE, BOB, admit, enter, mark, refused, wait_until_blocked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from tests.schema.conftest import Connect

PRUNE = "SELECT pruned, busy FROM fencing.prune('1 hour')"
JUMP = 2**40


@pytest.fixture
def background() -> Iterator[ThreadPoolExecutor]:
    """Threads for what has to wait."""
    with ThreadPoolExecutor() as threads:
        yield threads


@pytest.fixture
def old(accounts) -> psycopg.Connection:
    """The owner's connection; token 7 was admitted for the account, two hours ago."""
    admit(accounts, 7)
    age(accounts)
    return accounts


def age(owner: psycopg.Connection) -> None:
    """Let every fence be two hours old."""
    owner.execute("UPDATE fencing.fence SET admitted_at = admitted_at - interval '2 hours'")


def floor(owner: psycopg.Connection, resource: str = ACCOUNT) -> int:
    return owner.execute("SELECT fencing.floor_of(%s)", [resource]).fetchone()[0]


def neighbour(owner: psycopg.Connection, resource: str = ACCOUNT) -> str:
    """Another resource of the same bucket."""
    return owner.execute(
        "SELECT 'n' || n FROM generate_series(1, 100000) AS n "
        "WHERE fencing.bucket('n' || n) = fencing.bucket(%s) LIMIT 1",
        [resource],
    ).fetchone()[0]


def test_a_fence_that_a_maintenance_raised_is_pruned_like_any_other(old):
    with old.transaction():
        old.execute("SELECT fencing.maintain('accounts')")
        old.execute("UPDATE accounts SET balance = 0")
    age(old)
    assert old.execute(PRUNE).fetchone() == (2, 0)
    assert floor(old) >= 8


class TestBesideHolders:
    def test_a_holder_in_a_transaction_is_skipped_and_goes_on(self, old, connect):
        holder = connect()
        enter(holder, (ACCOUNT, 7, ALICE))
        assert old.execute(PRUNE).fetchone() == (0, 1)
        holder.execute("UPDATE accounts SET balance = 0 WHERE id = 42")
        holder.commit()

    def test_a_holder_between_two_transactions_is_refused_and_told_its_mark(self, old, connect):
        holder = connect()
        enter(holder, (ACCOUNT, 7, ALICE))
        holder.commit()
        old.execute(PRUNE)
        with refused(STALE) as stale:
            enter(holder, (ACCOUNT, 7, ALICE))
        assert '"current_token": 7' in stale.value.diag.message_detail

    def test_an_entry_waits_for_a_pruning_that_is_not_committed(self, old, connect, background):
        pruner, holder = connect(), connect()
        pruner.execute(PRUNE)
        late: Future = background.submit(enter, holder, (ACCOUNT, 7, ALICE))
        wait_until_blocked(old, holder.info.backend_pid)
        pruner.commit()
        with refused(STALE):
            late.result()

    def test_an_old_snapshot_does_not_write_under_a_fence_that_was_pruned(self, old, connect):
        holder = connect()
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT count(*) FROM accounts")
        old.execute(PRUNE)
        enter(holder, (ACCOUNT, 7, ALICE))
        with refused("40001"):
            holder.execute("UPDATE accounts SET balance = 0 WHERE id = 42")


class TestBesideAdmissions:
    """Token 5 is older than the fence of token 7: it must not come in, however they interleave."""

    @pytest.mark.parametrize("token", [5, 7])
    def test_an_older_one_is_refused_before_and_after_the_pruning_is_committed(
        self, old, connect: Connect, token
    ):
        pruner = connect()
        pruner.execute(PRUNE)
        with refused(STALE):  # still by the fence
            admit(old, token, BOB)
        pruner.commit()
        with refused(STALE):
            admit(old, token, BOB)

    def test_a_newer_one_that_waits_for_the_pruning_comes_in(self, old, connect, background):
        pruner, other = connect(), connect(autocommit=True)
        pruner.execute(PRUNE)
        late: Future = background.submit(admit, other, 8, BOB, wait_ms=10_000)
        wait_until_blocked(old, other.info.backend_pid)
        pruner.commit()
        assert late.result()
        assert mark(old) == (8, BOB)
        with refused(STALE):
            admit(old, 7)

    def test_a_newer_one_that_comes_first_is_skipped(self, old, connect):
        other = connect()
        admit(other, 8, BOB)
        assert old.execute(PRUNE).fetchone() == (0, 1)
        other.commit()
        assert mark(old) == (8, BOB)
        assert old.execute(PRUNE).fetchone() == (0, 0), "it is young again"

    def test_one_that_waits_for_a_holder_while_the_fence_is_pruned_finds_the_floor(
        self, accounts, connect, background
    ):
        """It looked before there was a fence, and waits; then one comes and is pruned."""
        holder, other = connect(), connect(autocommit=True)
        holder.execute("SELECT pg_advisory_xact_lock_shared(fencing.lock_key(%s))", [ACCOUNT])
        late: Future = background.submit(admit, other, 5, BOB, wait_ms=10_000)
        wait_until_blocked(accounts, other.info.backend_pid)
        # Past the lock that they queue for, as no admission and no pruning would.
        accounts.execute(
            "UPDATE fencing.floor SET token = 7 WHERE bucket = fencing.bucket(%s)", [ACCOUNT]
        )
        holder.commit()
        with refused(STALE) as stale:
            late.result()
        assert '"current_token": 7' in stale.value.diag.message_detail

    def test_a_new_neighbour_keeps_the_bucket_busy(self, old, connect):
        """It has read the floor; nobody may raise it before it is in."""
        other = connect()
        admit(other, 3, resource=neighbour(old))
        assert old.execute(PRUNE).fetchone() == (0, 1)
        other.commit()
        assert old.execute(PRUNE).fetchone() == (1, 0)

    def test_a_pruning_that_is_rolled_back_has_pruned_nothing(self, old, connect):
        pruner = connect()
        pruner.execute(PRUNE)
        pruner.rollback()
        assert mark(old) == (7, ALICE)
        assert floor(old) == 0

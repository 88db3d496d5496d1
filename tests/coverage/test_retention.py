"""Pruning forgets fences, and never what they kept: step by step beside admissions and holders."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.schema.names import ADMISSION_ISOLATION, FENCE_KEPT, STALE, UNFIT_USE
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


class TestWhatIsPruned:
    def test_what_is_old_enough(self, old):
        admit(old, 3, resource="young")
        assert old.execute(PRUNE).fetchone() == (1, 0)
        assert mark(old) is None
        assert mark(old, "young") == (3, ALICE)

    def test_its_floor_keeps_what_it_kept(self, old):
        old.execute(PRUNE)
        assert floor(old) == 7
        assert old.execute("SELECT fencing.mark(%s)", [ACCOUNT]).fetchone() == (7,)
        for token in (1, 6, 7):
            with refused(STALE) as stale:
                admit(old, token, BOB)
            assert '"current_token": 7' in stale.value.diag.message_detail
        assert admit(old, 8, BOB)

    def test_not_even_the_same_holder_comes_in_again_under_its_token(self, old):
        old.execute(PRUNE)
        with refused(STALE):
            admit(old, 7, ALICE)

    def test_a_new_fence_by_hand_is_held_to_the_floor(self, old):
        old.execute(PRUNE)
        with pytest.raises(psycopg.errors.CheckViolation):
            old.execute(
                "INSERT INTO fencing.fence (resource, token, holder, owner) "
                "VALUES (%s, 7, 'x', 'x')",
                [ACCOUNT],
            )

    def test_a_neighbour_in_its_bucket_may_have_to_start_higher(self, old):
        other = neighbour(old)
        old.execute(PRUNE)
        with refused(STALE):
            admit(old, 7, resource=other)
        assert admit(old, 8, resource=other)

    def test_an_outlier_is_kept_and_does_not_raise_the_floor_of_others(self, old):
        other = neighbour(old)
        old.execute("SELECT fencing.raise_fence(%s, %s)", [other, JUMP + 100])
        age(old)
        assert old.execute(PRUNE).fetchone() == (1, 0)
        assert floor(old) == 7
        assert mark(old, other)[0] == JUMP + 100

    def test_a_fence_that_a_maintenance_raised_is_pruned_like_any_other(self, old):
        with old.transaction():
            old.execute("SELECT fencing.maintain('accounts')")
            old.execute("UPDATE accounts SET balance = 0")
        age(old)
        assert old.execute(PRUNE).fetchone() == (2, 0)
        assert floor(old) >= 8

    def test_in_parts_that_begin_where_the_last_one_ended(self, admin):
        for number in range(25):
            admit(admin, 1, resource=f"r{number:02}")
        age(admin)
        pruned, after = 0, ""
        while after is not None:
            now, _, after = admin.execute(
                "SELECT * FROM fencing.prune('1 hour', %s, 10)", [after]
            ).fetchone()
            pruned += now
        assert pruned == 25
        assert admin.execute("SELECT count(*) FROM fencing.fence").fetchone() == (0,)

    @pytest.mark.parametrize("age", ["59 minutes", "0", "-1 day", None])
    def test_less_than_an_hour_is_refused(self, old, age):
        with refused(UNFIT_USE):
            old.execute("SELECT fencing.prune(%s)", [age])

    @pytest.mark.usefixtures("old")
    def test_only_at_read_committed(self, connect):
        other = connect()
        other.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with refused(ADMISSION_ISOLATION):
            other.execute(PRUNE)

    def test_a_delete_by_hand_without_its_floor_is_refused(self, old):
        with refused(FENCE_KEPT):
            old.execute("DELETE FROM fencing.fence")
        with refused(FENCE_KEPT):
            old.execute("UPDATE fencing.floor SET token = token - 1")


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

    def test_a_new_neighbour_waits_for_a_pruning_of_its_bucket(self, old, connect, background):
        name = neighbour(old)
        pruner, other = connect(), connect(autocommit=True)
        pruner.execute(PRUNE)
        late: Future = background.submit(admit, other, 5, resource=name, wait_ms=10_000)
        wait_until_blocked(old, other.info.backend_pid)
        pruner.commit()
        with refused(STALE):
            late.result()

    def test_a_pruning_that_is_rolled_back_has_pruned_nothing(self, old, connect):
        pruner = connect()
        pruner.execute(PRUNE)
        pruner.rollback()
        assert mark(old) == (7, ALICE)
        assert floor(old) == 0

    def test_two_prunings_at_once_share_the_work(self, old, connect):
        first = connect()
        assert first.execute(PRUNE).fetchone() == (1, 0)
        assert old.execute(PRUNE).fetchone() == (0, 1)
        first.commit()
        assert old.execute(PRUNE).fetchone() == (0, 0)


class TestRaisingByHand:
    def test_it_overtakes_the_holder_without_the_bound_of_admissions(self, old, connect):
        old.execute("SELECT fencing.raise_fence(%s, %s)", [ACCOUNT, JUMP * 4])
        with refused(STALE):
            enter(connect(), (ACCOUNT, 7, ALICE))
        assert admit(old, JUMP * 4 + 1, BOB)

    def test_it_makes_a_fence_where_there_is_none(self, accounts):
        accounts.execute("SELECT fencing.raise_fence('unheard-of', 12)")
        with refused(STALE):
            admit(accounts, 12, resource="unheard-of")

    @pytest.mark.parametrize("token", [1, 7])
    def test_it_lowers_nothing(self, old, token):
        with refused(STALE):
            old.execute("SELECT fencing.raise_fence(%s, %s)", [ACCOUNT, token])
        assert mark(old) == (7, ALICE)

    def test_it_is_held_to_the_floor_of_a_fence_that_was_pruned(self, old):
        old.execute(PRUNE)
        with refused(STALE):
            old.execute("SELECT fencing.raise_fence(%s, 7)", [ACCOUNT])

    def test_no_token_is_too_large_but_those_out_of_range(self, old):
        with pytest.raises(psycopg.errors.CheckViolation):
            old.execute("SELECT fencing.raise_fence(%s, %s)", [ACCOUNT, 2**53])

    def test_a_holder_that_writes_at_that_moment_is_waited_for(self, old, connect, background):
        holder, administrator = connect(), connect(autocommit=True)
        enter(holder, (ACCOUNT, 7, ALICE))
        holder.execute("UPDATE accounts SET balance = 0 WHERE id = 42")
        late: Future = background.submit(
            administrator.execute, "SELECT fencing.raise_fence(%s, 8)", [ACCOUNT]
        )
        wait_until_blocked(old, administrator.info.backend_pid)
        holder.commit()
        late.result()
        assert mark(old)[0] == 8

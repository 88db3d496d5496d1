"""Whatever the lock service says: no stale write is accepted, and the next acquire succeeds."""

from __future__ import annotations

import contextlib
import random
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis
from sqlalchemy import Engine, event, text
from sqlalchemy.orm import Session

from fencing import (
    Guard,
    Lease,
    LeaseLostError,
    LockServiceError,
    RedisLockService,
    StaleFenceError,
    UnfencedWriteError,
    fence,
)
from fencing.hooks.database import Database
from fencing.schema.names import NEVER_DECREASES
from tests.support.bank import ALICE, BOB, Bank
from tests.support.scripted import ScriptedLocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded import ValkeyProcess
    from tests.support.banking import MakeEngine


def withdraw(engine: Engine, account: int, *leases: Lease) -> None:
    with Session(engine) as session, fence(session, *leases):
        session.execute(
            text("UPDATE accounts SET balance = balance - 10 WHERE id = :id"), {"id": account}
        )
        session.commit()


class TestScripted:
    @pytest.mark.parametrize("tokens", [(7, 7), (7, 3), (7, 1), (7, 8)], ids=str)
    def test_a_repeated_or_reversed_token_is_raised_past_the_mark(
        self, engine: Engine, bank: Bank, account: int, resource: str, tokens: tuple[int, int]
    ) -> None:
        locks = ScriptedLocks(*tokens)
        first = Guard(locks, engine).acquire(resource)
        second = Guard(locks, engine).acquire(resource)
        assert (first.token, second.token) == (7, 8)
        with pytest.raises(StaleFenceError):
            withdraw(engine, account, first)
        withdraw(engine, account, second)
        assert bank.balance(account) == 90

    def test_a_repeated_holder_and_token_is_one_and_the_same(
        self, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        locks = ScriptedLocks((7, ALICE), (7, ALICE))
        for _ in range(2):
            withdraw(engine, account, Guard(locks, engine).acquire(resource))
        assert bank.mark(resource) == (7, ALICE)

    def test_the_same_token_with_another_holder_is_never_admitted(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        bank.admit(resource, 1, BOB)
        locks = ScriptedLocks((1, ALICE))
        locks.raised.append(LeaseLostError(resource=resource, token=1))  # it is BOB's
        lease = locks.acquire(resource)
        with pytest.raises(StaleFenceError) as refusal:
            guard.admit(lease)
        assert (refusal.value.token, refusal.value.current_token) == (1, 1)
        with pytest.raises(StaleFenceError), fence(session := Session(engine), lease), session:
            session.execute(text("SELECT 1"))
        with pytest.raises(LeaseLostError):
            withdraw(engine, account, lease)
        assert bank.mark(resource) == (1, BOB)

    def test_a_service_that_repeats_itself_for_ever_is_given_up(
        self, engine: Engine, bank: Bank, resource: str
    ) -> None:
        bank.admit(resource, 5)
        locks = ScriptedLocks(1)
        locks.raised.extend([5] * 20)
        with pytest.raises(LockServiceError, match="cannot be right") as error:
            Guard(locks, engine).acquire(resource)
        assert error.value.resource == resource
        assert locks.count("release") == 1
        assert bank.mark(resource) == (5, BOB)

    def test_a_token_from_far_ahead_is_refused_and_changes_nothing(
        self, engine: Engine, bank: Bank, resource: str
    ) -> None:
        bank.admit(resource, 1)
        locks = ScriptedLocks(2**50, 2)
        guard = Guard(locks, engine)
        with pytest.raises(LockServiceError, match="implausible") as error:
            guard.acquire(resource)
        assert error.value.resource == resource
        assert bank.mark(resource) == (1, BOB)
        assert locks.count("release") == 1
        assert guard.acquire(resource).token == 2

    def test_a_lease_that_is_lost_before_its_token_could_be_raised_is_replaced(
        self, engine: Engine, bank: Bank, resource: str
    ) -> None:
        bank.admit(resource, 5)
        locks = ScriptedLocks(1)
        locks.raised.append(LeaseLostError("flushed"))
        lease = Guard(locks, engine).acquire(resource)
        assert lease.token == 6
        assert [call for call in locks.calls if call[0] == "acquire"] == [
            ("acquire", resource, 0), ("acquire", resource, 5)
        ]  # fmt: skip
        assert bank.mark(resource) == (6, lease.holder)

    def test_an_admission_alone_heals_a_lease_that_was_never_admitted(
        self, guard: Guard, bank: Bank, resource: str
    ) -> None:
        bank.admit(resource, 5)
        elsewhere = ScriptedLocks()  # not the guard's own
        lease = elsewhere.acquire(resource)
        guard.admit(lease)
        assert elsewhere.calls[1:] == [("raise", resource, 5)]
        assert bank.mark(resource) == (6, lease.holder)

    def test_but_one_that_was_admitted_keeps_its_token(
        self, guard: Guard, bank: Bank, locks: ScriptedLocks, resource: str
    ) -> None:
        lease = locks.acquire(resource)
        guard.admit(lease)
        bank.admit(resource, 5)
        with pytest.raises(StaleFenceError) as refusal:
            guard.admit(lease)
        assert refusal.value.current_token == 5
        assert lease.token == 1
        assert locks.count("raise") == 0

    def test_a_lease_that_was_never_admitted_is_unfenced_and_not_stale(
        self, guard: Guard, engine: Engine, locks: ScriptedLocks, account: int, resource: str
    ) -> None:
        lease = locks.acquire(resource)
        with pytest.raises(UnfencedWriteError, match="before this database had admitted") as error:
            withdraw(engine, account, lease)
        assert not isinstance(error.value, StaleFenceError)
        assert error.value.resource == resource
        guard.admit(lease)
        withdraw(engine, account, lease)

    def test_not_even_a_direct_update_takes_the_mark_back(self, bank: Bank, resource: str) -> None:
        bank.admit(resource, 5)
        with pytest.raises(psycopg.errors.CheckViolation) as refusal:
            bank.observer.execute(
                "UPDATE fencing.fence SET token = 4, previous_token = 0 WHERE resource = %s",
                (resource,),
            )
        assert refusal.value.diag.constraint_name == NEVER_DECREASES
        assert bank.mark(resource) == (5, BOB)

    @pytest.mark.parametrize("seed", range(4))
    def test_random_tokens_let_only_the_last_admitted_holder_write(
        self, engine: Engine, bank: Bank, account: int, resource: str, seed: int
    ) -> None:
        chance = random.Random(seed)
        locks = ScriptedLocks()
        leases: list[Lease] = []
        accepted = 0
        for _ in range(60):
            if not leases or chance.random() < 0.3:
                locks.tokens.append((chance.randint(1, 9), chance.choice([ALICE, BOB, "c" * 32])))
                lease = locks.acquire(resource)
                with contextlib.suppress(StaleFenceError):
                    Guard(locks, engine).admit(lease)
                leases.append(lease)
            lease = chance.choice(leases)
            valid = bank.mark(resource) == (lease.token, lease.holder)
            try:
                withdraw(engine, account, lease)
            except LeaseLostError:
                assert not valid
            else:
                assert valid
                accepted += 1
        assert bank.balance(account) == 100 - 10 * accepted


class TestTwoDatabases:
    @pytest.fixture
    def other_bank(self, own_bank: Bank) -> Bank:
        return own_bank

    @pytest.fixture
    def other_engine(self, make_engine: MakeEngine, other_bank: Bank) -> Engine:
        return make_engine(other_bank.url)

    def test_a_token_is_above_both_marks_before_it_is_admitted_in_either(
        self, engine: Engine, other_engine: Engine, bank: Bank, other_bank: Bank, resource: str
    ) -> None:
        bank.admit(resource, 3)
        other_bank.admit(resource, 9)
        locks = ScriptedLocks(1)
        lease = Guard(locks, engine, other_engine).acquire(resource)
        assert lease.token == 10
        assert locks.count("raise") == 1
        assert bank.mark(resource) == other_bank.mark(resource) == (10, lease.holder)

    def test_a_lease_that_was_admitted_anywhere_is_never_given_another_token(
        self, engine: Engine, other_engine: Engine, bank: Bank, other_bank: Bank, resource: str
    ) -> None:
        locks = ScriptedLocks(1)
        guard = Guard(locks, engine, other_engine)
        overtaken: list[str] = []

        def overtake(_connection, _cursor, statement: str, *_: object) -> None:
            # Both marks have been asked for, and the first admission is on its way.
            if "fencing.admit" in statement and not overtaken:
                overtaken.append(statement)
                other_bank.admit(resource, 9)

        event.listen(Database.of(engine).admissions.engine, "before_cursor_execute", overtake)
        lease = guard.acquire(resource)
        assert overtaken
        assert [call for call in locks.calls if call[0] != "renew"] == [
            ("acquire", resource, 0), ("release", resource), ("acquire", resource, 9)
        ]  # fmt: skip
        assert lease.token == 10
        assert bank.mark(resource) == other_bank.mark(resource) == (10, lease.holder)

    def test_a_lease_covers_both(
        self, engine: Engine, other_engine: Engine, bank: Bank, other_bank: Bank, account, resource
    ) -> None:
        with Guard(ScriptedLocks(), engine, other_engine).acquire(resource):
            for each in (engine, other_engine):
                with each.begin() as connection:
                    connection.execute(
                        text("UPDATE accounts SET balance = 0 WHERE id = :id"), {"id": account}
                    )
        assert bank.balance(account) == other_bank.balance(account) == 0


class TestValkey:
    @pytest.fixture
    def locks(self, own_valkey: ValkeyProcess) -> Iterator[RedisLockService]:
        with RedisLockService.from_url(own_valkey.url) as locks:
            yield locks

    @pytest.fixture
    def client(self, own_valkey: ValkeyProcess) -> Iterator[redis.Redis]:
        with redis.Redis.from_url(own_valkey.url) as client:
            yield client

    def test_after_a_flush_the_next_acquire_simply_works(
        self, guard: Guard, engine: Engine, bank: Bank, client, account: int, resource: str
    ) -> None:
        leases = []
        for _ in range(3):
            with guard.acquire(resource) as lease:
                leases.append(lease)
            client.flushall()
        with guard.acquire(resource) as lease:
            assert lease.token == 4
            withdraw(engine, account, lease)
        assert [lease.token for lease in leases] == [1, 2, 3]
        assert bank.balance(account) == 90

    def test_a_holder_that_a_flush_has_robbed_is_overtaken_and_loses_nothing(
        self, guard: Guard, engine: Engine, bank: Bank, client, account, resource, locks, caplog
    ) -> None:
        with guard.acquire(resource) as robbed:
            client.flushall()
            with Guard(locks, engine).acquire(resource) as lease:
                assert lease.token == 2
                with pytest.raises(StaleFenceError):
                    withdraw(engine, account, robbed)
                withdraw(engine, account, lease)
        assert bank.balance(account) == 90
        assert robbed.lost
        assert "over before its block ended" in caplog.text

    def test_a_counter_that_was_set_back_is_raised_past_the_mark_and_stays_there(
        self, guard: Guard, client: redis.Redis, resource: str
    ) -> None:
        for _ in range(3):
            guard.acquire(resource).release()
        (counter,) = (key for key in client.scan_iter() if client.get(key) == b"3")
        client.set(counter, 1)
        assert guard.acquire(resource).token == 4
        assert client.get(counter) == b"4"

    def test_a_restored_backup_with_an_old_lock_in_it_gives_no_right(
        self, guard: Guard, engine: Engine, bank: Bank, client, account, resource, locks
    ) -> None:
        old = guard.acquire(resource)
        backup = {key: client.dump(key) for key in client.scan_iter()}
        old.release()
        new = Guard(locks, engine).acquire(resource)
        client.flushall()
        for key, value in backup.items():
            client.restore(key, 0, value)
        with pytest.raises(LeaseLostError):
            withdraw(engine, account, old)
        withdraw(engine, account, new)
        assert bank.balance(account) == 90

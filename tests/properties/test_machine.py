"""Holders, losses and administrators in any order, on a real Redis and a real PostgreSQL.

A model of a few lines says what must come of each step: who is admitted, who is refused, and what
is on the accounts in the end. Two lock services that know nothing of each other stand for one that
grants twice.
"""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from fencing import (
    Guard,
    LeaseLostError,
    RedisLockService,
    UnfencedWriteError,
    fence,
)
from fencing.administration.raising import raise_fence
from fencing.locks.redis.scripts import keys_of
from tests.support.bank import Account, Bank

if TYPE_CHECKING:
    from fencing import Lease
    from tests.support.databases import DatabaseFactory

TTL = 600.0  # nothing runs out by itself

accounts = st.integers(1, 2)
services = st.sampled_from(["one", "other"])


class Holders(RuleBasedStateMachine):
    """What may happen, and what must come of it."""

    leases: Bundle[Any] = Bundle("leases")

    # From the fixtures of the test.
    bank: Bank
    redis_url: str

    def __init__(self) -> None:
        super().__init__()
        self.client = redis.Redis.from_url(self.redis_url)
        self.engine = create_engine(self.bank.url)
        # A thread may hold a resource once a guard, so each acquisition has one of its own.
        self.namespaces = {name: f"machine-{uuid.uuid4().hex}" for name in ("one", "other")}
        self.locks = {
            name: RedisLockService(self.client, namespace=namespace)
            for name, namespace in self.namespaces.items()
        }
        self.guards = [Guard(locks, self.engine) for locks in self.locks.values()]
        self.held: dict[tuple[str, int], Lease] = {}  # whom each service believes to hold it
        self.admitted: dict[int, Lease | None] = {1: None, 2: None}
        self.services: dict[int, str] = {}  # of each lease, by its identity
        self.balances = {1: 0, 2: 0}
        self.marks = {1: 0, 2: 0}

    @initialize()
    def begin(self) -> None:
        for account in self.balances:
            self.balances[account] = self.bank.balance(account) or 0
            mark = self.bank.mark(f"account:{account}")
            self.marks[account] = mark[0] if mark else 0

    def teardown(self) -> None:
        for guard in self.guards:
            guard.close()
        for locks in self.locks.values():
            locks.close()
        self.client.close()
        self.engine.dispose()

    @rule(target=leases, account=accounts, service=services)
    def acquire(self, account: int, service: str) -> Any:
        guard = Guard(self.locks[service], self.engine)
        self.guards.append(guard)
        lease = guard.try_acquire(f"account:{account}", ttl=TTL)
        if (service, account) in self.held:
            assert lease is None
            return multiple()
        assert lease is not None
        assert lease.token > self.marks[account]
        self.marks[account] = lease.token
        self.admitted[account] = self.held[service, account] = lease
        self.services[id(lease)] = service
        return lease

    @rule(lease=leases, amount=st.integers(-5, 5))
    def write(self, lease: Lease, amount: int) -> None:
        account = int(lease.resource.partition(":")[2])
        allowed = self.admitted[account] is lease and not lease.released and not lease.lost
        with contextlib.ExitStack() as stack:
            if not allowed:
                refused = stack.enter_context(pytest.raises(LeaseLostError))
            session = stack.enter_context(Session(self.engine))
            stack.enter_context(fence(session, lease))
            session.get_one(Account, account).balance += amount
            session.commit()
        if allowed:
            self.balances[account] += amount
        else:
            assert refused.value.resource == lease.resource

    @rule(account=accounts)
    def write_without_a_lease(self, account: int) -> None:
        with Session(self.engine) as session, pytest.raises(UnfencedWriteError):
            session.execute(text(f"UPDATE accounts SET balance = 0 WHERE id = {account}"))

    @rule(lease=leases)
    def move_what_is_anothers(self, lease: Lease) -> None:
        account = int(lease.resource.partition(":")[2])
        move = text(f"UPDATE accounts SET balance = 0 WHERE id = {3 - account}")
        with Session(self.engine) as session, fence(session, lease):
            with pytest.raises((UnfencedWriteError, LeaseLostError)):
                session.execute(move)
            session.rollback()

    @rule(lease=leases)
    def renew(self, lease: Lease) -> None:
        account = int(lease.resource.partition(":")[2])
        service = self.services[id(lease)]
        ours = self.held.get((service, account)) is lease
        was_over = lease.released or lease.lost
        try:
            lease.renew()
        except LeaseLostError:
            assert was_over or not ours
        else:
            assert ours
            assert not was_over

    @rule(lease=consumes(leases))
    def release(self, lease: Lease) -> None:
        account = int(lease.resource.partition(":")[2])
        service = self.services[id(lease)]
        # Whoever finds nothing of his lock while he trusts it has lost nothing to anybody.
        with contextlib.suppress(LeaseLostError):
            lease.release()
        assert lease.released or lease.lost
        if self.held.get((service, account)) is lease:
            del self.held[service, account]

    @rule(account=accounts, service=services)
    def forget_the_lock(self, account: int, service: str) -> None:
        self.client.delete(keys_of(self.namespaces[service], f"account:{account}")[0])
        self.held.pop((service, account), None)

    @rule(service=services)
    def forget_everything(self, service: str) -> None:
        for account in self.balances:
            self.client.delete(*keys_of(self.namespaces[service], f"account:{account}"))
            self.held.pop((service, account), None)

    @rule(account=accounts, service=services, counter=st.integers(0, 3))
    def set_the_counter_back(self, account: int, service: str, counter: int) -> None:
        self.client.set(keys_of(self.namespaces[service], f"account:{account}")[1], counter)

    @rule(account=accounts, service=services)
    def force_release(self, account: int, service: str) -> None:
        taken = self.locks[service].force_release(f"account:{account}")
        assert taken == ((service, account) in self.held)
        self.held.pop((service, account), None)

    @rule(account=accounts, by=st.integers(1, 1000))
    def raise_the_fence(self, account: int, by: int) -> None:
        if self.marks[account]:
            raise_fence(self.bank.url, f"account:{account}", self.marks[account] + by)
            self.marks[account] += by
            self.admitted[account] = None

    @invariant()
    def the_database_is_as_the_model_says(self) -> None:
        for account, balance in self.balances.items():
            assert self.bank.balance(account) == balance
            mark = self.bank.mark(f"account:{account}")
            assert (mark[0] if mark else 0) == self.marks[account]


@pytest.mark.slow
def test_whatever_happens_the_database_is_right(
    database_factory: DatabaseFactory, redis_url: str
) -> None:
    with database_factory.fenced() as url:
        bank = Bank(url)
        Holders.bank, Holders.redis_url = bank, redis_url
        run_state_machine_as_test(
            Holders, settings=settings(max_examples=40, stateful_step_count=40)
        )
        bank.close()

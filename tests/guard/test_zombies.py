"""A stopped holder with an open transaction delays its successor for a while, and not for ever.

No clock here: a successor that gets the lease within its patience was not delayed longer than the
zombie's limits, and without the limits it is not delayed for less.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from fencing import Guard, LockNotAcquiredError, RedisLockService
from tests.support.bank import Account, Bank
from tests.support.holders import writes_what_it_computed, zombie
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    Zombie = Callable[..., ChildProcess]

TTL = 1.0
PATIENCE = 15.0


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture
def make_zombie(redis_url, redis_namespace, bank: Bank, account: int) -> Iterator[Zombie]:
    children: list[ChildProcess] = []

    def make(how: str, ttl: float = TTL) -> ChildProcess:
        children.append(
            ChildProcess(zombie, redis_url, redis_namespace, bank.url, account, ttl, how)
        )
        return children[-1]

    yield make
    for child in children:
        child.close()


def withdraw(guard: Guard, engine: Engine, account: int) -> int:
    with (
        guard.acquire(f"account:{account}", ttl=PATIENCE, blocking_timeout=PATIENCE) as lease,
        Session(engine) as session,
    ):
        session.get_one(Account, account).balance -= 10
        session.commit()
    return lease.token


@pytest.mark.parametrize("how", ["commit", "statement", "commit after many"])
def test_it_is_ended_by_its_limit_and_says_that_it_expired(
    guard: Guard, engine: Engine, bank: Bank, account: int, make_zombie: Zombie, how: str
) -> None:
    child = make_zombie(how)
    backend = child.wait_for("open")["pid"]
    child.suspend()
    assert withdraw(guard, engine, account) == 2
    bank.wait_until_gone(backend)
    child.resume()
    child.tell("go on")
    assert child.wait_for("refused")["error"] == "LeaseExpiredError"
    child.check()
    assert bank.balance(account) == 90


@pytest.mark.parametrize("how", ["commit past the check", "statement past the check"])
def test_what_it_sends_all_the_same_is_typed(
    guard: Guard, engine: Engine, bank: Bank, account: int, make_zombie: Zombie, how: str
) -> None:
    child = make_zombie(how)
    child.wait_for("open")
    child.suspend()
    assert withdraw(guard, engine, account) == 2
    child.resume()
    child.tell("go on")
    refusal = child.wait_for("refused")
    assert refusal == {
        "event": "refused", "error": "StaleFenceError", "lost": True, "current_token": 2
    }  # fmt: skip
    child.check()
    assert bank.balance(account) == 90


def test_one_that_is_stopped_while_it_receives_rows_is_ended_over_tcp(
    guard: Guard, engine: Engine, bank: Bank, account: int, make_zombie: Zombie
) -> None:
    """A server that waits for its client to read looks at no limit of its own meanwhile."""
    if engine.url.host not in ("127.0.0.1", "localhost"):
        pytest.skip("needs a server on this machine, over TCP")
    child = make_zombie("receiving", ttl=3.0)
    backend = child.wait_for("open")["pid"]
    activity = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s AND "
    bank.wait_until(f"{activity} state = 'active' AND query LIKE '%%repeat%%')", backend)
    child.suspend()
    bank.wait_until(f"{activity} wait_event = 'ClientWrite')", backend)
    assert withdraw(guard, engine, account) == 2
    child.resume()
    assert child.wait_for("refused")["error"] == "StaleFenceError"
    assert bank.balance(account) == 90


def test_one_that_is_stopped_in_a_long_statement_is_ended_too(
    guard: Guard, engine: Engine, bank: Bank, account: int, make_zombie: Zombie
) -> None:
    child = make_zombie("busy", ttl=3.0)
    backend = child.wait_for("open")["pid"]
    bank.wait_until(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep')",
        backend,
    )
    child.suspend()
    assert withdraw(guard, engine, account) == 2
    child.resume()
    assert child.wait_for("refused")["error"] == "StaleFenceError"
    assert bank.balance(account) == 90


def test_without_limits_its_successor_would_wait_and_is_told_for_whom(
    guard: Guard, engine: Engine, bank: Bank, account: int, make_zombie: Zombie, resource: str
) -> None:
    child = make_zombie("commit, unlimited")
    backend = child.wait_for("open")["pid"]
    child.suspend()
    with pytest.raises(LockNotAcquiredError, match="blocked by open transactions") as late:
        guard.acquire(resource, ttl=PATIENCE, blocking_timeout=4 * TTL)
    assert late.value.blocked_by == (backend,)
    assert late.value.resource == resource
    assert late.value.waited > 0
    assert guard.locks.try_acquire(resource, ttl=1) is not None, "the lock was given back"


def test_one_that_is_stopped_between_its_check_and_its_sending_is_refused_by_the_database(
    guard: Guard, engine: Engine, bank: Bank, account: int, redis_url, redis_namespace
) -> None:
    with ChildProcess(
        writes_what_it_computed, redis_url, redis_namespace, bank.url, account, TTL
    ) as child:
        child.wait_for("about to enter")
        child.suspend()
        assert withdraw(guard, engine, account) == 2
        child.resume()
        child.tell("go on")
        refusal = child.wait_for("refused")
        child.check()
    assert refusal["error"] == "StaleFenceError"
    assert refusal["current_token"] == 2
    assert bank.balance(account) == 90


def test_a_killed_one_delays_its_successor_no_longer_than_its_lock(
    guard: Guard, engine: Engine, bank: Bank, account: int, make_zombie: Zombie
) -> None:
    child = make_zombie("commit, unlimited")
    child.wait_for("open")
    child.kill()
    assert withdraw(guard, engine, account) == 2
    assert bank.balance(account) == 90


def test_a_killed_one_in_a_long_statement_is_noticed_though_its_lease_had_no_end(
    guard: Guard, engine: Engine, bank: Bank, account: int, make_zombie: Zombie
) -> None:
    child = make_zombie("busy, kept alive")
    backend = child.wait_for("open")["pid"]
    bank.wait_until(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'PgSleep')",
        backend,
    )
    child.kill()
    assert withdraw(guard, engine, account) == 2
    bank.wait_until_gone(backend)
    assert bank.balance(account) == 90

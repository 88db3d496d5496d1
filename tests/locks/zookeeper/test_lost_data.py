"""An ensemble that has lost its data hands out old tokens; the database heals them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from fencing import Guard, LockServiceError, StaleFenceError, ZooKeeperLockService
from tests.support.bank import Account, Bank, resource_of_account

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded.zookeeper import ZooKeeperProcess


@pytest.fixture
def bank(fenced_database: str) -> Iterator[Bank]:
    bank = Bank(fenced_database)
    yield bank
    bank.close()


def lose_everything(server: ZooKeeperProcess) -> None:
    server.kill()
    server.forget()
    server.start()


def once_it_is_reached(work: Any) -> Any:
    """Whoever has seen more than the server has is refused once or twice before he is let in."""
    pause = threading.Event()
    for _ in range(100):
        try:
            return work()
        except LockServiceError:
            pause.wait(0.05)
    return work()


def test_the_tokens_heal_and_no_stale_write_lands(
    bank: Bank, own_zookeeper: ZooKeeperProcess
) -> None:
    account = bank.new_account()
    resource = resource_of_account(account)
    engine = create_engine(bank.url)
    with (
        ZooKeeperLockService.from_url(own_zookeeper.url, session_timeout=1.0) as locks,
        ZooKeeperLockService.from_url(own_zookeeper.url, session_timeout=1.0) as others,
        Guard(locks, engine) as guard,
        Guard(others, engine) as other_guard,
    ):
        for _ in range(30):
            guard.acquire(resource, ttl=60).release()
        stale = guard.acquire(resource, ttl=60)

        lose_everything(own_zookeeper)

        plain = once_it_is_reached(lambda: others.acquire("another", ttl=60))
        assert plain.token < stale.token  # it has begun anew
        assert not once_it_is_reached(lambda: locks.locked(resource))
        with once_it_is_reached(lambda: other_guard.acquire(resource, ttl=60)) as lease:
            assert lease.token == stale.token + 1
            with Session(engine) as session:
                session.get_one(Account, account).balance = 7
                session.commit()
            with pytest.raises(StaleFenceError), stale, Session(engine) as session:  # noqa: PT012 - the block is the point
                session.get_one(Account, account).balance = 666
                session.commit()
        assert bank.balance(account) == 7
        assert bank.mark(resource)[0] == lease.token
        # The offset stays, for those without a database as well.
        with others.acquire(resource, ttl=60) as later:
            assert later.token > lease.token
    engine.dispose()


def test_an_offset_is_only_raised_by_who_has_the_lock(locks: Any, looker: Any) -> None:
    lease = locks.acquire("r", ttl=60)
    where = looker.space.offset("r")
    locks.raise_token(lease, floor=lease.token + 10)
    offset = int(looker.client.get(where)[0])
    locks.raise_token(lease, floor=5)
    assert int(looker.client.get(where)[0]) == offset
    assert locks.force_release("r")
    with pytest.raises(Exception, match="not ours"):
        locks.raise_token(lease, floor=lease.token + 10)
    assert int(looker.client.get(where)[0]) == offset


def test_a_token_that_would_be_too_large_is_an_error_that_says_so(locks: Any, looker: Any) -> None:
    lease = locks.acquire("r", ttl=60, floor=2**53 - 2)
    assert lease.token == 2**53 - 1
    lease.release()
    with pytest.raises(LockServiceError, match=r"2\*\*53 - 1.*elections.*offset"):
        locks.acquire("r", ttl=60)
    assert looker.nodes("r") == []


def test_an_offset_that_is_none_is_an_error_that_says_so(locks: Any, looker: Any) -> None:
    locks.acquire("r", ttl=60).release()
    looker.client.create(looker.space.offset("r"), b"much")
    with pytest.raises(LockServiceError, match="does not hold a number"):
        locks.acquire("r", ttl=60)
    assert looker.nodes("r") == []

"""An etcd whose store went back: the database heals the tokens, and no stale write lands."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from fencing import EtcdLockService, Guard, LeaseLostError, StaleFenceError
from tests.support.bank import Account, Bank
from tests.support.banking import *  # noqa: F403 - pytest collects fixtures by name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded.etcd import EtcdProcess

RESOURCE = "account:1"


@pytest.fixture
def engine(own_bank: Bank) -> Iterator[Engine]:
    engine = create_engine(own_bank.url)
    yield engine
    engine.dispose()


def deposit(engine: Engine, amount: int) -> None:
    with Session(engine) as session:
        session.get_one(Account, 1).balance += amount
        session.commit()


@pytest.mark.parametrize("how", ["restored", "wiped"])
def test_a_store_that_went_back_is_healed_by_the_database(
    own_etcd: EtcdProcess, own_bank: Bank, engine: Engine, how: str
) -> None:
    own_etcd.stop()
    own_etcd.keep("snapshot")
    own_etcd.start()
    with EtcdLockService(own_etcd.endpoint) as locks, Guard(locks, engine) as guard:
        for number in range(5):  # revisions that the snapshot has not seen
            locks.acquire(f"other:{number}", ttl=1).release()
        with guard.acquire(RESOURCE, ttl=60) as lease:
            deposit(engine, 1)
        with guard.acquire(RESOURCE, ttl=60) as old:
            assert old.token > lease.token
            deposit(engine, 10)
            own_etcd.stop()
            if how == "wiped":
                own_etcd.forget()
            else:
                own_etcd.restore("snapshot")
            own_etcd.start()

            tokens: list[int] = []
            successor = threading.Thread(target=succeed, args=(own_etcd.endpoint, engine, tokens))
            successor.start()
            successor.join(60)
            # etcd would have begun anew, far below the mark.
            assert tokens == [old.token + 1]

            with pytest.raises(StaleFenceError):
                deposit(engine, 1000)
            with pytest.raises(LeaseLostError):
                locks.renew(old, 60)
        with guard.acquire(RESOURCE, ttl=60) as later:
            assert later.token > tokens[0]
            deposit(engine, 10000)
    assert own_bank.balance(1) == 100 + 1 + 10 + 100 + 10000


def succeed(endpoint: str, engine: Engine, tokens: list[int]) -> None:
    with (
        EtcdLockService(endpoint) as locks,
        Guard(locks, engine) as guard,
        guard.acquire(RESOURCE, ttl=60) as lease,
    ):
        deposit(engine, 100)
        tokens.append(lease.token)

"""A live system moves from one lock service to another, and its tokens go on growing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from fencing import Guard, StaleFenceError, connect
from fencing.embedded import ValkeyProcess
from tests.support.bank import Account, Bank
from tests.support.banking import *  # noqa: F403 - pytest collects fixtures by name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing import LockService

RESOURCE = "account:1"


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[ValkeyProcess]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ValkeyProcess()) for _ in range(3)]


@pytest.fixture
def each(
    own_bank: Bank, redis_url: str, etcd_url: str, zookeeper_url: str, nodes: list[ValkeyProcess]
) -> Iterator[dict[str, LockService]]:
    """One of each; their first tokens are 1, some hundreds, 2**32 and so on."""
    urls = {
        "redis": redis_url,
        "redlock": "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in nodes),
        "etcd": etcd_url,
        "zookeeper": zookeeper_url,
    }
    namespace = f"moving-{own_bank.url.rpartition('/')[2]}"
    with contextlib.ExitStack() as stack:
        services = {
            kind: stack.enter_context(connect(url, namespace=namespace))
            for kind, url in urls.items()
        }
        services["postgresql"] = stack.enter_context(connect(own_bank.url))
        yield services


@pytest.fixture
def engine(own_bank: Bank) -> Iterator[Engine]:
    engine = create_engine(own_bank.url)
    yield engine
    engine.dispose()


def deposit(engine: Engine) -> None:
    with Session(engine) as session:
        session.get_one(Account, 1).balance += 1
        session.commit()


# Each kind follows each other one once.
ROUTE = [
    "redis", "etcd", "redis", "zookeeper", "redis", "redlock", "redis", "postgresql",
    "etcd", "zookeeper", "etcd", "redlock", "etcd", "postgresql",
    "zookeeper", "redlock", "zookeeper", "postgresql",
    "redlock", "postgresql", "redis",
]  # fmt: skip


def test_tokens_grow_from_one_service_to_the_next(each, engine: Engine, own_bank: Bank) -> None:
    guards = {kind: Guard(locks, engine) for kind, locks in each.items()}
    tokens = []
    for kind in ROUTE:
        with guards[kind].acquire(RESOURCE, ttl=30) as lease:
            deposit(engine)
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))
    assert own_bank.balance(1) == 100 + len(ROUTE)
    assert own_bank.mark(RESOURCE)[0] == tokens[-1]
    for guard in guards.values():
        guard.close()


@pytest.mark.parametrize(("old", "new"), [("zookeeper", "redis"), ("redis", "postgresql")])
def test_a_holder_that_the_old_service_still_knows_is_refused(
    each, engine: Engine, own_bank: Bank, old: str, new: str
) -> None:
    """Both grant: a process with the old configuration was still running."""
    other = create_engine(own_bank.url)
    with (
        Guard(each[old], engine) as before,
        Guard(each[new], other) as after,
        before.acquire(RESOURCE, ttl=60),
    ):
        deposit(engine)
        with after.acquire(RESOURCE, ttl=60):
            deposit(other)
        with pytest.raises(StaleFenceError):
            deposit(engine)
    other.dispose()
    assert own_bank.balance(1) == 102

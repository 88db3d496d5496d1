"""A guard over a Redlock whose nodes have forgotten everything: it heals, and refuses."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy.orm import Session

from fencing import AsyncGuard, AsyncRedlockService, Guard, RedlockService, StaleFenceError
from fencing.embedded import ValkeyProcess
from tests.support.bank import Account, Bank

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine


@pytest.fixture
def nodes() -> Iterator[list[ValkeyProcess]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ValkeyProcess()) for _ in range(3)]


@pytest.fixture
def url(nodes: list[ValkeyProcess]) -> str:
    return f"redlock://{','.join(f'127.0.0.1:{node.port}' for node in nodes)}/0"


@pytest.fixture
def guard(url: str, engine: Engine) -> Iterator[Guard]:
    with Guard(RedlockService.from_url(url), engine) as guard:
        yield guard


def restart_empty(nodes: list[ValkeyProcess]) -> None:
    for node in nodes:
        node.kill()
        node.start()


def withdraw(engine: Engine, account: int, amount: int) -> None:
    with Session(engine) as session:
        found = session.get(Account, account)
        assert found is not None
        found.balance -= amount
        session.commit()


def test_nodes_that_have_lost_their_counters_are_healed(
    guard: Guard,
    engine: Engine,
    nodes: list[ValkeyProcess],
    bank: Bank,
    account: int,
    resource: str,
) -> None:
    for _ in range(3):
        with guard.acquire(resource, ttl=60) as lease:
            withdraw(engine, account, 10)
    restart_empty(nodes)
    with guard.acquire(resource, ttl=60) as healed:
        assert healed.token > lease.token
        withdraw(engine, account, 10)
    # The nodes know it as well.
    with guard.acquire(resource, ttl=60) as later:
        assert later.token == healed.token + 1
        withdraw(engine, account, 10)
    assert bank.balance(account) == 50


def test_who_was_forgotten_by_the_nodes_is_refused_by_the_database(
    guard: Guard,
    url: str,
    engine: Engine,
    nodes: list[ValkeyProcess],
    bank: Bank,
    account: int,
    resource: str,
) -> None:
    with guard.acquire(resource, ttl=60):
        pass
    with guard.acquire(resource, ttl=60) as forgotten:
        withdraw(engine, account, 10)
        with guard.suspended():
            restart_empty(nodes)  # two have the lock now, and the second one's token was smaller
            with (
                Guard(RedlockService.from_url(url), engine) as other,
                other.acquire(resource, ttl=60, blocking_timeout=20) as lease,
            ):
                assert lease.token > forgotten.token
                withdraw(engine, account, 1)
        assert not forgotten.lost  # as far as it can know
        with pytest.raises(StaleFenceError):
            withdraw(engine, account, 50)
    assert bank.balance(account) == 89


async def test_healing_works_asynchronously_as_well(
    url: str, async_engine: AsyncEngine, nodes: list[ValkeyProcess], resource: str
) -> None:
    async with AsyncGuard(AsyncRedlockService.from_url(url), async_engine) as guard:
        async with guard.acquire(resource, ttl=60) as lease:
            pass
        restart_empty(nodes)
        async with guard.acquire(resource, ttl=60) as healed:
            assert healed.token > lease.token

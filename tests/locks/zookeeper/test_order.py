"""Tokens grow, whatever happens between what one acquisition sends."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from fencing import AsyncZooKeeperLockService, ZooKeeperLockService
from fencing.locks.zookeeper import session
from fencing.locks.zookeeper.asking import Children, Create, Get
from tests.support.waiting import until_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 20


class Other:
    """Another service, before a chosen request of which something happens once."""

    def __init__(
        self, kind: str, url: str, namespace: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.kind, self.url, self.namespace = kind, url, namespace
        self.monkeypatch = monkeypatch
        self.happened = False

    def attempt(self, before: Callable[[Any], bool], happens: Callable[[], None]) -> Any:
        """Try to acquire the lock once; return the lease."""
        original = session.sent

        def sent(client: Any, operation: Any, watch: Any) -> Any:
            ours = client is made[0]._session._client
            if ours and not self.happened and before(operation):
                self.happened = True
                happens()
            return original(client, operation, watch)

        made: list[Any] = []

        async def in_asyncio() -> Any:
            async with AsyncZooKeeperLockService.from_url(
                self.url, namespace=self.namespace
            ) as locks:
                await locks.inspect("another")  # it is connected
                made.append(locks)
                self.monkeypatch.setattr(session, "sent", sent)
                return await locks.try_acquire("r", ttl=60)

        if self.kind == "async":
            return asyncio.run(in_asyncio())
        with ZooKeeperLockService.from_url(self.url, namespace=self.namespace) as locks:
            locks.inspect("another")
            made.append(locks)
            self.monkeypatch.setattr(session, "sent", sent)
            return locks.try_acquire("r", ttl=60)


@pytest.fixture(params=["sync", "async"])
def other(
    request: pytest.FixtureRequest,
    zookeeper_url: str,
    zookeeper_namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Other:
    return Other(request.param, zookeeper_url, zookeeper_namespace, monkeypatch)


def test_a_token_is_above_one_that_was_raised_after_queueing_up(locks: Any, other: Other) -> None:
    first = locks.acquire("r", ttl=60)

    def happens() -> None:
        locks.raise_token(first, floor=first.token + 1_000_000)
        first.release()

    second = other.attempt(
        lambda asked: isinstance(asked, Get) and asked.path == first.place.path, happens
    )
    assert other.happened
    assert second.token > first.token


@pytest.mark.parametrize("when", ["it has queued up", "it has looked"])
def test_a_token_is_above_one_of_who_was_granted_the_lock_after_queueing_up(
    locks: Any, other: Other, when: str
) -> None:
    """That one was before it, and is gone when it looks."""
    first = locks.acquire("r", ttl=60)

    def wait() -> int:
        with locks.acquire("r", ttl=60) as lease:
            return lease.token

    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(wait)
        until_waiting(locks, 1)
        tokens = []

        def happens() -> None:
            until_waiting(locks, 2)
            first.release()
            tokens.append(waiting.result(SECONDS))

        def before(asked: Any) -> bool:
            if when == "it has queued up":  # and not yet asked who was before it
                return isinstance(asked, Children) and asked.path.endswith("/r")
            return isinstance(asked, Get) and asked.path == first.place.path

        second = other.attempt(before, happens)
    assert other.happened
    assert second.token > tokens[0]


def test_an_uncontended_lock_needs_one_round_trip(locks: Any) -> None:
    """The queue that it finds is the one that it was added to."""
    locks.acquire("r").release()
    asked: list[Any] = []
    original = locks._session.ask

    def ask(batch: Any) -> None:
        asked.append(batch.operations)
        original(batch)

    locks._session.ask = ask
    lease = locks.acquire("r")
    [operations] = asked
    assert isinstance(operations[0], Create)
    lease.release()

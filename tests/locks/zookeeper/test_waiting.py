"""Waiters, deadlines and renewals."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fencing import (
    AsyncZooKeeperLockService,
    LockNotAcquiredError,
    LockServiceError,
    ZooKeeperLockService,
)
from fencing.clock import now
from fencing.embedded.proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def proxy(zookeeper_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(zookeeper_url) as proxy:
        yield proxy


async def test_a_thousand_waiters_of_one_process_are_all_served(alocks: Any, looker: Any) -> None:
    inside = 0
    tokens = []
    await (await alocks.acquire("r")).release()  # its session has its threads now
    threads = threading.active_count()

    async def enter() -> None:
        nonlocal inside
        async with alocks.acquire("r", ttl=60) as lease:
            inside += 1
            assert inside == 1
            tokens.append(lease.token)
            inside -= 1

    async with alocks.acquire("r", ttl=60):
        waiting = [asyncio.ensure_future(enter()) for _ in range(1000)]
        while len(looker.nodes("r")) < 2:  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0.02)
        assert len(looker.nodes("r")) == 2
        assert threading.active_count() < threads + 5
    await asyncio.gather(*waiting)
    assert tokens == sorted(tokens)
    assert len(set(tokens)) == 1000
    assert looker.nodes("r") == []


async def test_a_release_wakes_one_waiter(
    proxy: TcpProxy, zookeeper_url: str, zookeeper_namespace: str
) -> None:
    async with (
        AsyncZooKeeperLockService.from_url(zookeeper_url, namespace=zookeeper_namespace) as locks,
        AsyncZooKeeperLockService.from_url(proxy.url, namespace=zookeeper_namespace) as others,
    ):
        lease = await locks.acquire("r", ttl=60)
        first = asyncio.ensure_future(locks.acquire("r", ttl=60)._begin())
        while (await locks.inspect("r")).waiters < 1:
            pass
        behind = [
            asyncio.ensure_future(others.acquire("r", ttl=60, fair=True)._begin())
            for _ in range(10)
        ]
        while (await locks.inspect("r")).waiters < 11:
            pass
        session: Any = others._session
        while len(session._watches) < 10 or session._outstanding:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        before = proxy.commands()  # all of them watch now
        await lease.release()
        second = await first
        await asyncio.sleep(0.3)
        # Only the one behind the new holder has looked, to see until when he has it.
        assert proxy.commands() - before <= 6
        await second.release()
        for task in behind:
            await (await task).release()


@pytest.mark.parametrize("fair", [False, True])
def test_a_deadline_is_kept_and_has_a_last_attempt(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str, *, fair: bool
) -> None:
    lease = locks.acquire("r", ttl=60, owner="the holder")
    with pytest.raises(LockNotAcquiredError, match="the holder") as caught:
        locks.acquire("r", ttl=60, blocking_timeout=0.5, fair=fair)
    assert caught.value.waited >= 0.5
    assert locks.inspect("r").waiters == 0
    lease.release()


def test_a_lock_that_ends_just_before_the_deadline_is_taken(locks: Any) -> None:
    locks.acquire("r", ttl=0.48)
    locks.acquire("r", ttl=60, blocking_timeout=0.5).release()


def test_one_behind_another_waits_no_longer_for_a_dead_holder(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str
) -> None:
    dead = locks.acquire("r", ttl=1.0)
    taken: list[Any] = []

    def take() -> None:
        with locks.acquire("r", ttl=60, fair=True) as lease:
            taken.append((now(), lease.token))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(taken) == 3
    assert all(at >= dead.trusted_until for at, _ in taken)
    assert [token for _, token in taken] == sorted(token for _, token in taken)


def test_a_renewal_never_shortens_what_zookeeper_keeps(locks: Any) -> None:
    lease = locks.acquire("r", ttl=60)
    lease.renew(10)
    assert lease.remaining < 10
    assert locks.inspect("r").remaining > 50
    lease.renew(30)
    assert locks.inspect("r").remaining > 50
    lease.release()


def test_a_server_that_accepts_and_does_not_answer_is_tried_again(
    proxy: TcpProxy, zookeeper_namespace: str
) -> None:
    proxy.swallow_reply(silently=True)  # to the first word on a connection
    with ZooKeeperLockService.from_url(
        proxy.url, namespace=zookeeper_namespace, session_timeout=60.0
    ) as locks:
        locks.acquire("r", blocking_timeout=30).release()


def test_many_leases_are_renewed_together(locks: Any, proxy: TcpProxy) -> None:
    leases = [locks.acquire(f"r{number}", ttl=5) for number in range(150)]
    locks.force_release("r7")
    came = locks.renew_many([(lease, 60.0) for lease in leases], within=10)
    assert [number for number, each in enumerate(came) if each is not None] == [7]
    assert leases[7].lost
    assert all(lease.remaining > 50 for lease in leases if lease is not leases[7])
    for lease in leases:
        if not lease.lost:
            lease.release()


def test_scan_tells_what_is_held(locks: Any) -> None:
    held = {name: locks.acquire(name, ttl=60) for name in ("a/1", "a/2", "b.1", "a/%")}
    locks.acquire("a/3", ttl=60).release()
    assert {state.resource for state in locks.scan("a/")} == {"a/1", "a/2", "a/%"}
    assert {state.resource: state.token for state in locks.scan()} == {
        name: lease.token for name, lease in held.items()
    }


def test_an_answer_is_waited_for_no_longer_than_the_deadline(
    proxy: TcpProxy, zookeeper_namespace: str
) -> None:
    with ZooKeeperLockService.from_url(
        proxy.url, namespace=zookeeper_namespace, session_timeout=1.0
    ) as locks:
        locks.acquire("r").release()
        proxy.hold()
        with pytest.raises(LockServiceError, match="did not answer"):
            locks.acquire("r", blocking_timeout=0.5)
        proxy.release()
        proxy.refuse()

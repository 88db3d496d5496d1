"""Sessions that end, servers that restart: nothing of it is a lease's business."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from fencing import AsyncZooKeeperLockService, LockServiceError, ZooKeeperLockService
from fencing.embedded.proxy import TcpProxy
from tests.support.waiting import until

if TYPE_CHECKING:
    from fencing.embedded.zookeeper import ZooKeeperProcess

SECONDS = 20


def expire(locks: Any) -> int:
    """End a service's session, as ZooKeeper would; return which it was."""
    identities: list[Any] = []

    def has_one() -> bool:  # or not yet again, where the last one has ended by itself
        identities.append(locks._session._client.client_id)
        return identities[-1] is not None

    until(has_one)
    session, password = identities[-1]
    hosts = ",".join(f"{host}:{port}" for host, port in locks._session._client.hosts)
    other = KazooClient(hosts, client_id=(session, password))
    other.start()
    other.stop()
    other.close()
    return session


def test_a_session_that_ends_takes_no_lease(locks: Any) -> None:
    lease = locks.acquire("r", ttl=60)
    expired = expire(locks)
    assert lease.owned()
    assert not lease.lost
    lease.renew(50)
    assert locks.try_acquire("r") is None
    assert locks._session._client.client_id[0] != expired
    lease.release()
    assert not locks.locked("r")


def test_a_lease_that_is_kept_alive_outlives_sessions(locks: Any) -> None:
    lost = threading.Event()
    # Three seconds, as a busy machine may do nothing for one, and a session begins anew then.
    lease = locks.acquire("r", ttl=3, keepalive=True, on_lost=lambda _: lost.set())
    for _ in range(3):
        expire(locks)
        assert not lost.wait(1.2)
    assert lease.owned()
    lease.release()


def test_a_waiter_whose_session_ends_queues_up_again(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str
) -> None:
    lease = locks.acquire("r", ttl=60)
    with (
        ZooKeeperLockService.from_url(
            zookeeper_url, namespace=zookeeper_namespace, session_timeout=1.0
        ) as others,
        ThreadPoolExecutor() as threads,
    ):
        waiting = threads.submit(others.acquire, "r", ttl=30)
        until(lambda: locks.inspect("r").waiters == 1)
        for _ in range(2):
            expire(others)
            until(lambda: others._session.connected and locks.inspect("r").waiters == 1)
        assert not waiting.done()
        lease.release()
        successor = waiting.result(SECONDS)
        assert successor.token > lease.token
        assert successor.owned()
        successor.release()


def test_a_waiter_s_node_ends_with_its_session_and_a_holder_s_does_not(
    locks: Any, looker: Any
) -> None:
    lease = locks.acquire("r", ttl=60)
    parent = looker.space.parent("r")
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(locks.acquire, "r", ttl=30)
        until(lambda: len(looker.nodes("r")) == 2)

        def owners() -> list[int]:
            stats = [looker.client.exists(f"{parent}/{name}") for name in looker.nodes("r")]
            return [stat.ephemeralOwner for stat in stats if stat]

        until(lambda: sorted(map(bool, owners())) == [False, True])
        assert locks._session._client.client_id[0] in owners()
        lease.release()
        successor = waiting.result(SECONDS)
    assert owners() == [0]
    successor.release()
    assert looker.nodes("r") == []


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_server_that_restarts_has_forgotten_nothing(
    kind: str, own_zookeeper: ZooKeeperProcess
) -> None:
    async def in_asyncio() -> None:
        async with AsyncZooKeeperLockService.from_url(
            own_zookeeper.url, session_timeout=1.0
        ) as locks:
            lease = await locks.acquire("r", ttl=60)
            waiting = asyncio.ensure_future(locks.acquire("r", ttl=30)._begin())
            while (await locks.inspect("r")).waiters != 1:  # noqa: ASYNC110 - of the server
                await asyncio.sleep(0.02)
            await asyncio.to_thread(restart)
            assert await lease.owned()
            await lease.release()
            try:
                successor = await waiting
            except LockServiceError:  # the restart took longer than a waiter's patience
                successor = await locks.acquire("r", ttl=30, blocking_timeout=SECONDS)
            assert successor.token > lease.token
            await successor.release()

    def restart() -> None:
        own_zookeeper.kill()
        own_zookeeper.start()

    if kind == "async":
        asyncio.run(in_asyncio())
        return
    with (
        ZooKeeperLockService.from_url(own_zookeeper.url, session_timeout=1.0) as locks,
        ThreadPoolExecutor() as threads,
    ):
        lease = locks.acquire("r", ttl=60)
        waiting = threads.submit(locks.acquire, "r", ttl=30)
        until(lambda: locks.inspect("r").waiters == 1)
        restart()
        assert lease.owned()
        lease.release()
        try:
            successor = waiting.result(SECONDS)
        except LockServiceError:
            successor = locks.acquire("r", ttl=30, blocking_timeout=SECONDS)
        assert successor.token > lease.token
        successor.release()


def test_what_could_not_be_cleaned_up_is_when_the_connection_is_back(
    zookeeper_url: str, zookeeper_namespace: str, looker: Any
) -> None:
    """The session lives on; a node of a waiter who has given up would be waited for for ever."""
    with (
        TcpProxy.to(zookeeper_url) as proxy,
        ZooKeeperLockService.from_url(
            proxy.url, namespace=zookeeper_namespace, session_timeout=30.0
        ) as locks,
        ThreadPoolExecutor() as threads,
    ):
        lease = locks.acquire("r", ttl=60)
        waiting = threads.submit(locks.acquire, "r", ttl=30, blocking_timeout=1.0)
        until(lambda: len(looker.nodes("r")) == 2)
        proxy.refuse()
        with pytest.raises(LockServiceError):
            waiting.result(SECONDS)
        assert len(looker.nodes("r")) == 2
        proxy.accept()
        until(lambda: len(looker.nodes("r")) == 1)
        assert lease.owned()
        lease.release()


def test_a_closed_service_begins_anew(locks: Any) -> None:
    lease = locks.acquire("r", ttl=60)
    locks.close()
    assert not lease.lost
    assert lease.owned()
    lease.release()


def test_closing_does_not_wait_for_a_server_that_says_nothing(
    zookeeper_url: str, zookeeper_namespace: str
) -> None:
    with TcpProxy.to(zookeeper_url) as proxy:
        locks = ZooKeeperLockService.from_url(proxy.url, namespace=zookeeper_namespace)
        locks.acquire("r", ttl=30)
        proxy.hold()
        locks.close()
        proxy.refuse()

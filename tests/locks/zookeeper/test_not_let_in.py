"""Servers that take a connection, and give no session on it."""

from __future__ import annotations

import asyncio
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from fencing import AsyncZooKeeperLockService, LockServiceError, ZooKeeperLockService
from fencing.embedded.proxy import TcpProxy
from fencing.locks import asking
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded.zookeeper import ZooKeeperProcess

SESSION_SECONDS = 60.0
"""Longer than anything here is waited for: nobody is let in since his session has ended."""

SECONDS = 20.0

_WAITER = re.compile(r"-\d+\.\d+$")
"""The place of a waiter; it asks at first as if it were alone, and is no waiter yet."""


@pytest.fixture
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter does not give up while a server is started again, however slowly."""
    monkeypatch.setattr(asking, "TROUBLE_SECONDS", SESSION_SECONDS)


@pytest.fixture
def locks(own_zookeeper: ZooKeeperProcess) -> Iterator[ZooKeeperLockService]:
    with ZooKeeperLockService.from_url(own_zookeeper.url, session_timeout=SESSION_SECONDS) as locks:
        yield locks


def attempts() -> Iterator[None]:
    """Until one succeeds, for so many seconds at most."""
    pause = threading.Event()
    for _ in range(int(SECONDS / 0.1)):
        yield
        pause.wait(0.1)
    raise AssertionError("nobody was let in")


def nodes(server: ZooKeeperProcess) -> list[str]:
    """Of the resource, as somebody sees them who comes now."""
    client = KazooClient(f"127.0.0.1:{server.port}")
    client.start()
    try:
        found: list[str] = client.get_children("/fencing/locks/r")
    finally:
        client.stop()
        client.close()
    return found


def session_of(locks: ZooKeeperLockService) -> int:
    number: int = locks._session._client.client_id[0]
    return number


def lose_everything(server: ZooKeeperProcess) -> None:
    server.kill()
    server.forget()
    server.start()


def test_a_server_that_has_lost_its_data_lets_in_who_has_seen_it(
    locks: ZooKeeperLockService, own_zookeeper: ZooKeeperProcess
) -> None:
    before = locks.acquire("r", ttl=60)
    lose_everything(own_zookeeper)
    for _ in attempts():
        try:
            lease = locks.acquire("r", ttl=60)
        except LockServiceError:
            continue
        break
    assert lease.token <= before.token  # it has begun anew
    lease.release()


async def test_a_server_that_has_lost_its_data_lets_in_who_has_seen_it_in_asyncio(
    own_zookeeper: ZooKeeperProcess,
) -> None:
    async with AsyncZooKeeperLockService.from_url(
        own_zookeeper.url, session_timeout=SESSION_SECONDS
    ) as locks:
        before = await locks.acquire("r", ttl=60)
        await asyncio.to_thread(lose_everything, own_zookeeper)
        for _ in range(int(SECONDS / 0.1)):
            try:
                lease = await locks.acquire("r", ttl=60)
            except LockServiceError:
                await asyncio.sleep(0.1)
            else:
                break
        assert lease.token <= before.token
        await lease.release()


def test_what_is_told_is_not_why_an_attempt_before_has_failed(
    own_zookeeper: ZooKeeperProcess,
) -> None:
    with (
        TcpProxy.to(own_zookeeper.url) as proxy,
        ZooKeeperLockService.from_url(proxy.url, session_timeout=SESSION_SECONDS) as locks,
    ):
        locks.acquire("r", ttl=60)
        own_zookeeper.kill()
        proxy.refuse()
        with pytest.raises(LockServiceError, match=r"cannot be reached.*refused"):
            locks.locked("r")
        proxy.accept()
        until(lambda: locks._session.failure is None)
        with pytest.raises(LockServiceError, match="a server without a quorum lets nobody in"):
            locks.locked("r")


@pytest.mark.usefixtures("_patience")
def test_a_session_goes_on_when_the_servers_were_only_not_ready(
    own_zookeeper: ZooKeeperProcess,
) -> None:
    """None of its waiters leaves a place behind for those after it to wait for."""
    with (
        TcpProxy.to(own_zookeeper.url) as proxy,
        ZooKeeperLockService.from_url(proxy.url, session_timeout=SESSION_SECONDS) as locks,
        ThreadPoolExecutor() as threads,
    ):
        lease = locks.acquire("r", ttl=60)
        waiting = threads.submit(locks.acquire, "r", ttl=60)
        until(lambda: any(_WAITER.search(name) for name in nodes(own_zookeeper)))
        session, client = session_of(locks), locks._session._client
        own_zookeeper.kill()
        # The proxy takes connections, and ends them since nobody is behind it.
        until(lambda: client.last_zxid == 0)
        own_zookeeper.start()
        until(lambda: locks._session.connected)
        assert locks._session._client is client
        assert session_of(locks) == session
        assert len(nodes(own_zookeeper)) == 2
        lease.release()
        waiting.result(SECONDS).release()
        assert nodes(own_zookeeper) == []


@pytest.mark.usefixtures("_patience")
def test_nothing_that_a_session_has_deleted_comes_back_with_an_older_copy(
    locks: ZooKeeperLockService, own_zookeeper: ZooKeeperProcess
) -> None:
    """The session is known there, and so are the places of its waiters, who have gone.

    Nobody else may come meanwhile: each that does is a transaction, and brings the server nearer to
    what the session has seen.
    """
    with ThreadPoolExecutor() as threads:
        lease = locks.acquire("r", ttl=60)
        waiting = threads.submit(locks.acquire, "r", ttl=60)
        until(lambda: any(_WAITER.search(name) for name in nodes(own_zookeeper)))
        session, client = session_of(locks), locks._session._client
        own_zookeeper.kill()
        own_zookeeper.keep("copy")
        own_zookeeper.start()
        until(lambda: locks._session.connected)
        lease.release()
        waiting.result(SECONDS).release()
    assert nodes(own_zookeeper) == []
    assert session_of(locks) == session

    own_zookeeper.kill()
    own_zookeeper.restore("copy")
    own_zookeeper.start()
    until(lambda: locks._session._client is not client)
    until(lambda: len(nodes(own_zookeeper)) == 1)  # the holder's, which ends with its ttl
    for _ in attempts():
        try:
            locks.acquire("another", ttl=60).release()
        except LockServiceError:
            continue
        break
    assert session_of(locks) != session

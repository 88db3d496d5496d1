"""Connections to an etcd: after cancellations, beside close(), and with answers that trickle."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from fencing import AsyncEtcdLockService, EtcdLockService, FencingError, LockServiceError
from fencing.clock import now
from fencing.locks.asking import Trouble
from fencing.locks.etcd import requests, transport
from fencing.locks.etcd.many import done_for_each
from tests.contract.facade import in_thread
from tests.locks.redis.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.locks.etcd.answers import Reply


async def test_cancelled_calls_leave_no_connection_in_use(etcd_url, etcd_namespace):
    chance = random.Random(3)

    async def use(locks: AsyncEtcdLockService, number: int) -> None:
        async with locks.acquire(f"r{number % 7}", ttl=5, blocking_timeout=5):
            pass

    async with AsyncEtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as locks:
        for _ in range(15):
            using = [asyncio.ensure_future(use(locks, number)) for number in range(40)]
            await asyncio.sleep(chance.random() * 0.06)
            for task in using:
                task.cancel()
            await asyncio.gather(*using, return_exceptions=True)
        way = locks._etcd._transport
        while way._running:
            await asyncio.wait(list(way._running))
        pool = way._client._transport._pool
        assert pool._requests == []
        assert all(connection.is_idle() for connection in pool.connections)
        assert not way._watching


async def test_closing_awaits_what_a_cancelled_call_has_left(locks, others, proxy):
    if not isinstance(locks, AsyncEtcdLockService):
        pytest.skip("a thread cannot be cancelled")
    proxy.hold()
    calling = asyncio.ensure_future(locks.inspect("r"))
    assert await asyncio.to_thread(proxy.held.wait, 20)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    running = list(locks._etcd._transport._running)
    assert running
    proxy.release()
    await locks.aclose()
    assert all(task.done() for task in running)
    assert not await locks.locked("r")


def test_closing_beside_calls_is_trouble_at_most(etcd_url, etcd_namespace):
    locks = EtcdLockService.from_url(etcd_url, namespace=etcd_namespace)
    errors: list[BaseException] = []
    done = threading.Event()

    def work(number: int) -> None:
        try:
            for _ in range(60):
                with contextlib.suppress(FencingError):
                    locks.acquire(f"r{number}", ttl=5, blocking_timeout=2).release()
        except BaseException as error:  # noqa: BLE001 - told below
            errors.append(error)

    def close() -> None:
        while not done.wait(0.001):
            locks.close()

    working = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    closing = threading.Thread(target=close)
    for thread in (*working, closing):
        thread.start()
    for thread in working:
        thread.join()
    done.set()
    closing.join()
    locks.close()
    assert errors == []


@pytest.fixture
def trickling() -> Iterator[str]:
    """The address of a server whose answers do not end: another byte comes in time, always."""
    ended = threading.Event()
    threads = []

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.recv(65536)
            try:
                connection.sendall(b"HTTP/1.1 200 OK\r\nX-Endless: ")
                while not ended.wait(0.1):
                    connection.sendall(b"x")
            except OSError:
                pass

    def listen() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,)))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        listening = threading.Thread(target=listen)
        listening.start()
        yield f"etcd://127.0.0.1:{server.getsockname()[1]}/"
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
        listening.join()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_call_ends_though_its_answer_trickles(trickling, kind):
    def call() -> None:
        with EtcdLockService.from_url(trickling) as locks:
            locks.try_acquire("r", ttl=5)

    async def call_async() -> None:
        async with AsyncEtcdLockService.from_url(trickling) as locks:
            await locks.try_acquire("r", ttl=5)

    # Or else not before the server has no memory left.
    with pytest.raises(LockServiceError, match="did not answer in time"):
        call() if kind == "sync" else asyncio.run(call_async())


def test_a_slow_etcd_is_asked_for_many_renewals_at_a_time(proxy, etcd_namespace):
    with EtcdLockService.from_url(proxy.url, namespace=etcd_namespace) as locks:
        leases = [(locks.acquire(f"r{number}", ttl=60), 60.0) for number in range(20)]
        outcomes: list[FencingError | None] = []
        proxy.hold()
        proxy.reset_counts()
        renewing = threading.Thread(
            target=lambda: outcomes.extend(locks.renew_many(leases, within=30))
        )
        renewing.start()
        until = now() + 20
        while proxy.commands("/v3/lease/keepalive") < 16 and now() < until:
            proxy.held.wait(0.01)
        asked = proxy.commands("/v3/lease/keepalive")
        proxy.release()
        renewing.join()
        assert asked == 16
        assert outcomes == [None] * 20


def test_what_is_done_for_many_is_told_in_order_and_raised():
    assert done_for_each(lambda number: number * 2, range(50)) == list(range(0, 100, 2))
    assert done_for_each(str, []) == []
    with pytest.raises(ZeroDivisionError):
        done_for_each(lambda number: 1 / (number - 7), range(50))


@pytest.mark.parametrize("others_are_answered", [True, False])
async def test_who_only_waited_for_a_connection_is_told_so(
    others_are_answered, locks, proxy, monkeypatch
):
    monkeypatch.setattr(transport, "_ASKING", dict.fromkeys(transport._ASKING, 1))
    sync = not isinstance(locks, AsyncEtcdLockService)
    way = (locks.locks if sync else locks)._etcd._transport
    body = requests.get(b"x")["request_range"]

    async def ask(seconds: float) -> Reply:
        asked = ("kv/range", body, now() + seconds)
        return await (in_thread(way.ask, *asked) if sync else way.ask(*asked))

    def wait_for_a_connection() -> int:
        client = way._clients.asks if sync else way._client
        return len(client._transport._pool._requests)

    proxy.hold()
    first = asyncio.ensure_future(ask(20))
    assert await asyncio.to_thread(proxy.held.wait, 20)
    second = asyncio.ensure_future(ask(1.0))
    await until(lambda: wait_for_a_connection() == 2)
    if others_are_answered:
        way.answered += 1
    with pytest.raises(Trouble, match="etcd was not asked") as caught:
        await second
    assert caught.value.busy is others_are_answered
    proxy.release()
    await first

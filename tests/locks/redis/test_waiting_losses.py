"""Waiting for a lock on a real server, while something is lost: never for good asleep."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.locks.redis import RedisLockService, listening, subscribing
from tests.contract.facade import ThreadedLocks, in_thread
from tests.locks.redis.waiting import Server, begun, service, until

if TYPE_CHECKING:
    from fencing.embedded import ValkeyProcess
    from fencing.embedded.proxy import TcpProxy


class TestLosing:
    @pytest.mark.parametrize("times", [1, 3])
    async def test_the_channel(self, locks: Any, others: Any, server: Server, times: int) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        for _ in range(times):
            await until(lambda: server.listeners() == 1)
            assert server.client.client_kill_filter(_type="pubsub") >= 1
        await until(lambda: server.listeners() == 1)
        await held.release()
        await (await task).release()

    async def test_the_channel_early_costs_nobody_his_place(
        self, locks: Any, others: Any, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listening, "AGAIN_SECONDS", 600)
        held = await others.acquire("r", ttl=30)
        first = begun(locks, fair=True)
        await server.queued()
        assert server.client.client_kill_filter(_type="pubsub") >= 1
        await until(lambda: server.listeners() == 1)
        second = begun(others, fair=True)
        await server.queued(2)
        await held.release()
        lease = await first
        assert not second.done()
        await lease.release()
        await (await second).release()

    async def test_the_scripts(self, locks: Any, others: Any, server: Server) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        server.client.script_flush()
        await held.release()
        await (await task).release()

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_all_that_redis_had(self, kind: str, own_valkey: ValkeyProcess) -> None:
        async with service(kind, own_valkey.url, "n") as locks:
            for _ in range(5):
                await (await locks.acquire("r")).release()
            await locks.acquire("r", ttl=60)
            task = begun(locks)
            with redis.Redis.from_url(own_valkey.url) as client:
                await Server(client, "n").queued()
                client.flushall()
            assert (await task).token == 1

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_redis_for_a_moment(self, kind: str, own_valkey: ValkeyProcess) -> None:
        async with service(kind, own_valkey.url, "n") as locks:
            await locks.acquire("r", ttl=60)
            task = begun(locks)
            with redis.Redis.from_url(own_valkey.url) as client:
                await Server(client, "n").queued()
            await in_thread(own_valkey.kill)
            await in_thread(own_valkey.start)
            assert (await task).token == 1

    async def test_a_connection_that_is_silent(
        self,
        locks: Any,
        others: Any,
        server: Server,
        proxy: TcpProxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(subscribing, "HEARTBEAT_SECONDS", 0.1)
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        await until(lambda: proxy.commands("PING") >= 2)  # and they were answered
        subscribed = proxy.commands("SUBSCRIBE")
        proxy.keep_back(b"pong", b"PONG")  # as the two protocols say it
        await until(lambda: proxy.commands("SUBSCRIBE") > subscribed)
        proxy.deliver(times=0)
        await held.release()
        await (await task).release()

    async def test_interest(
        self, locks: Any, others: Any, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(subscribing, "HEARTBEAT_SECONDS", 0.1)
        for _ in range(2):
            held = await others.acquire("r", ttl=30)
            task = begun(locks)
            await server.queued()
            assert server.listeners() == 1
            await held.release()
            await (await task).release()
            await until(lambda: server.listeners() == 0)

    async def test_the_service_goes_on_after_close(
        self, redis_url: str, server: Server, others: Any
    ) -> None:
        locks = RedisLockService.from_url(redis_url, namespace=server.namespace)
        for _ in range(2):
            held = await others.acquire("r", ttl=30)
            task = begun(ThreadedLocks(locks))
            await server.queued()
            await held.release()
            await (await task).release()
            locks.close()
            assert server.listeners() == 0

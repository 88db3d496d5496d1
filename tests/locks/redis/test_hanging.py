"""A Redis that hangs (SIGSTOP): connections stay, and nothing is answered."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis
import redis.asyncio
from redis.crc import key_slot

from fencing.clock import now
from fencing.embedded.asking import until
from fencing.embedded.cluster import SLOTS, ValkeyCluster
from fencing.errors import LeaseExpiredError, LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fencing.embedded import ValkeyProcess

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])


@contextlib.asynccontextmanager
async def service(client: Any, kind: str) -> AsyncIterator[Any]:
    if kind == "sync":
        with client, RedisLockService(client) as locks:
            yield ThreadedLocks(locks)
    else:
        async with client, AsyncRedisLockService(client) as locks:
            yield locks


def suspend(server: ValkeyProcess) -> None:
    """Stop a server, and wait until it has stopped."""
    process = psutil.Process(server.pid)
    server.suspend()
    until(lambda: process.status() == psutil.STATUS_STOPPED, "it did not stop")


@contextlib.contextmanager
def hanging(server: ValkeyProcess) -> Iterator[None]:
    suspend(server)
    try:
        yield
    finally:
        server.resume()


class TestOneServer:
    async def test_a_loss_is_noticed_when_trust_ends_and_not_later(
        self, kind: str, own_valkey: ValkeyProcess
    ) -> None:
        module: Any = redis if kind == "sync" else redis.asyncio
        noticed = threading.Event()
        async with service(module.Redis(port=own_valkey.port), kind) as locks:
            lease = await locks.acquire(
                "r", ttl=1.5, keepalive=True, on_lost=lambda _: noticed.set()
            )
            with hanging(own_valkey):
                assert await lease.wait_lost(30)
                assert lease.lost
                assert lease.remaining == 0
                assert await asyncio.to_thread(noticed.wait, 30)
                with pytest.raises(LeaseExpiredError):
                    await lease.renew()
            # Redis has the lock's end from a request that was sent before the one we count from.
            async with locks.acquire("r", ttl=30) as later:
                assert later.token > lease.token

    async def test_who_waits_is_told_that_it_is_not_the_lock(
        self, kind: str, own_valkey: ValkeyProcess
    ) -> None:
        module: Any = redis if kind == "sync" else redis.asyncio
        async with service(module.Redis(port=own_valkey.port), kind) as locks:
            held = await locks.acquire("r", ttl=60)
            suspend(own_valkey)
            with pytest.raises(LockServiceError, match="did not answer in time"):
                await locks.acquire("r", ttl=60, blocking_timeout=1)
            own_valkey.resume()
            await held.release()
            async with locks.acquire("r", ttl=60, blocking_timeout=30):
                pass


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    # Nobody takes over, and the rest goes on.
    settings = ("--cluster-node-timeout", "60000", "--cluster-require-full-coverage", "no")
    with ValkeyCluster(nodes=3, settings=settings) as cluster:
        yield cluster


def on(node: int, count: int = 3) -> list[str]:
    """Resources whose keys are on a node."""
    names = (f"r{number}" for number in range(1000))
    return [name for name in names if key_slot(name.encode()) * 3 // SLOTS == node][:count]


class TestOneOfSeveral:
    async def test_the_others_leases_are_kept_alive(
        self, kind: str, cluster: ValkeyCluster
    ) -> None:
        module: Any = redis if kind == "sync" else redis.asyncio
        client = module.RedisCluster(host="127.0.0.1", port=cluster.port)
        async with service(client, kind) as locks:
            leases = [
                await locks.acquire(name, ttl=3, keepalive=True)
                for node in range(3)
                for name in on(node)
            ]
            there, elsewhere = leases[:3], leases[3:]
            with hanging(cluster.nodes[0]):
                for lease in there:
                    assert await lease.wait_lost(30)
                at = now()
                # Without the hanging one's all have been renewed since it hangs.
                for lease in elsewhere:
                    assert not lease.lost
                    assert lease.trusted_until > at > there[0].trusted_until
                    assert await lease.owned()
            for lease in elsewhere:
                await lease.release()

    async def test_the_others_serve_a_service_that_begins(
        self, kind: str, cluster: ValkeyCluster
    ) -> None:
        module: Any = redis if kind == "sync" else redis.asyncio
        # It has heard of the one that hangs first.
        client = module.RedisCluster(host="127.0.0.1", port=cluster.port)
        if kind == "async":
            await client.initialize()
        async with service(client, kind) as locks:
            with hanging(cluster.nodes[0]):
                for name in (*on(1), *on(2)):
                    async with locks.acquire(name, ttl=30, blocking=False):
                        pass
                with pytest.raises(LockServiceError):
                    await locks.try_acquire(on(0)[0])
                async with locks.acquire(on(1)[0], ttl=30, blocking=False):
                    pass

    async def test_one_that_is_slow_and_still_in_charge_is_waited_for(
        self, kind: str, cluster: ValkeyCluster
    ) -> None:
        module: Any = redis if kind == "sync" else redis.asyncio
        client = module.RedisCluster(host="127.0.0.1", port=cluster.port)
        slow, *others = cluster.nodes
        async with service(client, kind) as locks:
            first, second, *_ = on(0)
            await (await locks.acquire(first, ttl=30)).release()
            calls, looks = (
                asked(cluster, [slow], "evalsha"),
                asked(cluster, others, "cluster|slots"),
            )
            suspend(slow)
            acquiring = asyncio.ensure_future(locks.acquire(second, ttl=30)._begin())

            def looked() -> bool:
                return asked(cluster, others, "cluster|slots") > looks

            await asyncio.to_thread(until, looked, "nobody looked who is in charge")
            slow.resume()
            lease = await acquiring
            assert asked(cluster, [slow], "evalsha") == calls + 1, "the request was not repeated"
            await lease.release()


def asked(cluster: ValkeyCluster, nodes: list[ValkeyProcess], command: str) -> int:
    """How often nodes have run a command."""
    stats = [cluster.ask(node, "INFO", "commandstats") for node in nodes]
    return sum(each.get(f"cmdstat_{command}", {}).get("calls", 0) for each in stats)

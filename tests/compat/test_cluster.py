"""On Redis Cluster, with names of every shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fencing.compat.redis import AsyncFencedLock, FencedLock
from fencing.embedded.cluster import ValkeyCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ["account:42", b"account:43", "account:{42}:lock", "{", "}", "a}b", "{}", "{}a", "a{b", "é"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=3) as cluster:
        yield cluster


@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_sync(cluster: ValkeyCluster, name: Any) -> None:
    with redis.RedisCluster(host="127.0.0.1", port=cluster.port) as client:
        for token in (1, 2):
            lock = client.lock(name, timeout=20, lock_class=FencedLock)
            plain = client.lock(name, timeout=20)
            with lock:
                assert lock.lease.token == token
                assert not plain.acquire(blocking=False)
                assert lock.extend(10)
                assert lock.owned()
                lock.lease.renew(60)
            with plain:
                assert not lock.acquire(blocking=False)
        client.flushall(target_nodes=redis.RedisCluster.PRIMARIES)


@pytest.mark.parametrize("name", NAMES, ids=repr)
async def test_async(cluster: ValkeyCluster, name: Any) -> None:
    async with redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port) as client:
        for token in (1, 2):
            lock: Any = client.lock(name, timeout=20, lock_class=AsyncFencedLock)
            plain = client.lock(name, timeout=20)
            async with lock:
                assert lock.lease.token == token
                assert not await plain.acquire(blocking=False)
                assert await lock.extend(10)
                assert await lock.owned()
                await lock.lease.renew(60)
            async with plain:
                assert not await lock.acquire(blocking=False)
        await client.flushall(target_nodes=redis.asyncio.RedisCluster.PRIMARIES)

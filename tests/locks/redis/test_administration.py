"""Looking at locks in Redis and taking them away; what every lock service must do is elsewhere."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fencing.embedded.cluster import ValkeyCluster
from fencing.errors import LockNotAcquiredError, LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of, pattern_of, resource_of_key
from fencing.request import MAX_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded.proxy import TcpProxy

NAMES = [
    "r",
    "a{b}c",
    "}{",
    "%7B",
    "%257B",
    "%",
    "*",
    "a*",
    "a?",
    "[a]",
    "\\",
    "^",
    "ключ",
    "x" * 512,
]


async def names(locks: Any, prefix: str = "") -> list[str]:
    return sorted([state.resource async for state in locks.scan(prefix)])


class TestScan:
    async def test_finds_every_name_once(self, locks: Any) -> None:
        for name in NAMES:
            await locks.acquire(name, ttl=60, owner=name)
        states = [state async for state in locks.scan()]
        assert sorted(state.resource for state in states) == sorted(NAMES)
        assert all(state.held and state.owner == state.resource[:200] for state in states)
        assert all(state.remaining > 30 for state in states)

    @pytest.mark.parametrize(
        "prefix", ["a", "a*", "a?", "[", "%", "%7B", "{", "a{", "}", "\\", "к"]
    )
    async def test_a_prefix_means_itself(self, locks: Any, prefix: str) -> None:
        for name in NAMES:
            await locks.acquire(name, ttl=60)
        assert await names(locks, prefix) == sorted(n for n in NAMES if n.startswith(prefix))

    async def test_of_what_is_held_only(self, locks: Any) -> None:
        await locks.acquire("held", ttl=60)
        released = await locks.acquire("released", ttl=60)
        await released.release()
        expired = await locks.acquire("expired", ttl=0.05)
        await expired.wait_lost()
        await asyncio.sleep(0.05)
        assert await names(locks) == ["held"]

    async def test_nothing_of_others(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        await locks.acquire("held", ttl=60)
        for key in (
            f"{redis_namespace}2:{{r}}:lock",
            f"2{redis_namespace}:{{r}}:lock",
            f"{redis_namespace}:{{r}}:lock:more",
            f"{redis_namespace}:{{a{{b}}:lock",
            f"{redis_namespace}:{{%7b}}:lock",
        ):
            redis_client.set(key, "1:ab:me", px=60_000)
        redis_client.hset(f"{redis_namespace}:{{hash}}:lock", "a", "b")
        assert await names(locks) == ["held"]

    async def test_what_is_released_on_the_way_is_not_told(
        self, locks: Any, proxy: TcpProxy, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        await locks.acquire("r", ttl=60)
        proxy.hold()
        scanning = asyncio.ensure_future(names(locks))
        assert await asyncio.get_running_loop().run_in_executor(None, proxy.held.wait, 20)
        redis_client.delete(keys_of(redis_namespace, "r")[0])
        proxy.release()
        assert await scanning == []

    async def test_more_than_a_page(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        with redis_client.pipeline(transaction=False) as pipeline:
            for number in range(1500):
                key = keys_of(redis_namespace, f"r:{number}")[0]
                pipeline.set(key, f"1:{number:032x}:me", px=60_000)
            pipeline.execute()
        assert await names(locks) == sorted(f"r:{number}" for number in range(1500))

    async def test_that_fails_on_its_way_says_so(self, locks: Any, proxy: TcpProxy) -> None:
        await locks.acquire("r", ttl=60)
        proxy.refuse()
        with pytest.raises(LockServiceError, match=r"^lock service: Redis cannot be reached"):
            await names(locks)

    @pytest.mark.parametrize(
        ("prefix", "error"), [(None, TypeError), (b"r", TypeError), ("\ud800", ValueError)]
    )
    def test_checks_its_prefix_when_it_is_called(
        self, redis_url: str, prefix: Any, error: type
    ) -> None:
        with RedisLockService.from_url(redis_url) as locks, pytest.raises(error):
            locks.scan(prefix)
        with pytest.raises(error):
            AsyncRedisLockService.from_url(redis_url).scan(prefix)

    @pytest.mark.parametrize("namespace", ["fencing", "a*b", "[x]"])
    @pytest.mark.parametrize("name", NAMES)
    def test_keys_are_read_as_they_are_written(self, namespace: str, name: str) -> None:
        key = keys_of(namespace, name)[0].decode()
        assert resource_of_key(namespace, key) == name
        assert resource_of_key("another", key) is None
        assert resource_of_key(namespace, keys_of(namespace, name)[1].decode()) is None
        assert pattern_of(namespace, name).endswith("*}:lock")

    def test_a_key_that_is_written_otherwise_is_no_lock_of_ours(self) -> None:
        for tag in ("a{b", "a}b", "a%b", "%7b"):
            assert resource_of_key("fencing", f"fencing:{{{tag}}}:lock") is None


class TestOddLocks:
    async def test_a_lock_without_expiry(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        redis_client.persist(keys_of(redis_namespace, "r")[0])
        state = await locks.inspect("r")
        assert state.remaining == math.inf
        assert state.token == lease.token
        assert await locks.force_release("r") is True
        assert not await locks.locked("r")

    async def test_a_foreign_value_is_told_and_left_alone(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str, lock_value: Any
    ) -> None:
        redis_client.set(keys_of(redis_namespace, "r")[0], "somebody", px=60_000)
        state = await locks.inspect("r")
        assert (state.held, state.token, state.holder, state.owner) == (True, None, None, "")
        with pytest.raises(LockServiceError, match="delete it") as caught:
            await locks.force_release("r")
        assert caught.value.resource == "r"
        assert lock_value("r") == "somebody"

    @pytest.mark.parametrize("digits", [17, 5000])
    async def test_a_foreign_number_instead_of_a_token_is_waited_for(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str, digits: int
    ) -> None:
        lock = keys_of(redis_namespace, "r")[0]
        redis_client.set(lock, f"{'9' * digits}:ab:somebody", px=60_000)
        assert (await locks.inspect("r")).token is None
        for acquire in (
            locks.acquire("r", blocking_timeout=0.01),
            locks.acquire_all(["r", "another"], blocking_timeout=0.01),
        ):
            with pytest.raises(LockNotAcquiredError, match=r"somebody \(token unknown\)"):
                await acquire
        redis_client.delete(lock)
        await (await locks.acquire("r")).release()

    async def test_a_foreign_counter(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        counter = keys_of(redis_namespace, "r")[1]
        for value in ("many", "-1", str(MAX_TOKEN + 1), "9" * 5000):
            redis_client.set(counter, value)
            assert (await locks.inspect("r")).counter is None
        redis_client.delete(counter)
        redis_client.hset(counter, "a", "b")
        assert (await locks.inspect("r")).counter is None

    async def test_another_type(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        redis_client.hset(keys_of(redis_namespace, "r")[0], "a", "b")
        for asked in (locks.inspect("r"), locks.locked("r"), locks.force_release("r")):
            with pytest.raises(LockServiceError, match="WRONGTYPE"):
                await asked


async def test_who_waits_is_counted(
    locks: Any, redis_client: redis.Redis, redis_namespace: str
) -> None:
    redis_client.zadd(keys_of(redis_namespace, "r")[2], {"one": 1, "another": 2})
    assert (await locks.inspect("r")).waiters == 2
    assert (await locks.inspect("another")).waiters == 0


class TestLostReplies:
    async def test_of_inspect(self, locks: Any, proxy: TcpProxy) -> None:
        lease = await locks.acquire("r", ttl=60)
        proxy.swallow_reply(containing=b"EVALSHA")
        assert (await locks.inspect("r")).token == lease.token
        assert proxy.swallowed.is_set()

    async def test_of_force_release_is_no_loss_to_the_successor(
        self, locks: Any, proxy: TcpProxy, redis_url: str, redis_namespace: str
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        with RedisLockService.from_url(redis_url, namespace=redis_namespace) as others:
            proxy.swallow_reply(containing=lease.holder.encode())
            taking = asyncio.ensure_future(locks.force_release("r"))
            assert await asyncio.get_running_loop().run_in_executor(None, proxy.swallowed.wait, 20)
            proxy.refuse()
            successor = others.acquire("r", ttl=60, blocking=False)
            proxy.accept()
            assert await taking is True
            assert successor.owned()
            successor.release()

    async def test_nobody_there(self, locks: Any, proxy: TcpProxy) -> None:
        lease = await locks.acquire("r", ttl=60)
        proxy.refuse()
        for asked in (locks.inspect("r"), locks.force_release("r"), lease.owned()):
            with pytest.raises(LockServiceError, match="resource 'r': Redis cannot be reached"):
                await asked
        assert not lease.lost


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=3) as cluster:
        yield cluster


class TestCluster:
    NAMES = tuple(f"r{number}" for number in range(60))

    def test_every_primary_is_asked(self, cluster: ValkeyCluster) -> None:
        with (
            redis.RedisCluster(host="127.0.0.1", port=cluster.port) as client,
            RedisLockService(client, namespace="sync") as locks,
        ):
            for name in self.NAMES:
                locks.acquire(name, ttl=60)
            assert {client.get_node_from_key(keys_of("sync", n)[0]).port for n in self.NAMES} == {
                node.port for node in cluster.nodes
            }
            found = [state.resource for state in locks.scan()]
            assert sorted(found) == sorted(self.NAMES)
            assert locks.force_release("r7") is True
            assert locks.inspect("r7").held is False

    async def test_every_primary_is_asked_async(self, cluster: ValkeyCluster) -> None:
        async with (
            redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port) as client,
            AsyncRedisLockService(client, namespace="async") as locks,
        ):
            for name in self.NAMES:
                await locks.acquire(name, ttl=60)
            assert await names(locks) == sorted(self.NAMES)
            assert await locks.force_release("r7") is True
            assert (await locks.inspect("r7")).held is False

"""The Redis lock services keep the contract, over every kind of client."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from fencing.embedded.cluster import ValkeyCluster
from fencing.embedded.proxy import TcpProxy
from fencing.embedded.sentinel import SERVICE, Watched
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.contract.facade import ThreadedLocks
from tests.contract.suite import BadInputContract, LockServiceContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


class Backdoor:
    """What a test does to Redis behind the service's back."""

    def __init__(self, client: Any, namespace: str, asked: Callable[[], int]) -> None:
        self.client = client
        self.namespace = namespace
        self.asked = asked

    def drop(self, resource: str) -> None:
        assert self.client.delete(keys_of(self.namespace, resource)[0]) == 1


def settings(**given: Any) -> Any:
    return pytest.param(given, id=",".join(f"{k}={v}" for k, v in given.items()) or "defaults")


FLAVOURS = [
    settings(),
    settings(protocol=3, decode_responses=True, health_check_interval=1),
    settings(protocol=2, decode_responses=True, encoding="latin-1"),
]


@contextlib.asynccontextmanager
async def service(kind: str, client: Any, namespace: str) -> AsyncIterator[Any]:
    if kind == "sync":
        with RedisLockService(client, namespace=namespace) as locks:
            yield ThreadedLocks(locks)
    else:
        async with AsyncRedisLockService(client, namespace=namespace) as locks:
            yield locks


@pytest.fixture(scope="module")
def proxy(redis_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(redis_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=3, replicas=1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    with Watched() as watched:
        yield watched


class OneRedis:
    """One server, behind a proxy that counts."""

    @pytest.fixture(params=[FLAVOURS[0]])
    async def locks(
        self, request: pytest.FixtureRequest, kind: str, proxy: TcpProxy, redis_namespace: str
    ) -> AsyncIterator[Any]:
        module = redis if kind == "sync" else redis.asyncio
        client = module.Redis.from_url(proxy.url, **request.param)
        async with service(kind, client, redis_namespace) as locks:
            yield locks

    @pytest.fixture
    def backdoor(
        self, proxy: TcpProxy, redis_client: redis.Redis, redis_namespace: str
    ) -> Backdoor:
        return Backdoor(redis_client, redis_namespace, proxy.commands)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("locks", FLAVOURS, indirect=True)
class TestOneRedis(OneRedis, LockServiceContract):
    pass


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestBadInput(OneRedis, BadInputContract):
    pass


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestSentinel(LockServiceContract):
    @pytest.fixture
    async def locks(self, kind: str, watched: Watched, backdoor: Backdoor) -> AsyncIterator[Any]:
        module: Any = redis.sentinel if kind == "sync" else redis.asyncio.sentinel
        sentinel = module.Sentinel(watched.addresses)
        async with service(kind, sentinel.master_for(SERVICE), backdoor.namespace) as locks:
            yield locks

    @pytest.fixture
    def backdoor(self, watched: Watched) -> Iterator[Backdoor]:
        with redis.Redis.from_url(watched.servers[0].url) as client:
            client.flushall()
            yield Backdoor(client, "fencing", lambda: 0)


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestCluster(LockServiceContract):
    @pytest.fixture
    async def locks(
        self, kind: str, cluster: ValkeyCluster, backdoor: Backdoor
    ) -> AsyncIterator[Any]:
        module: Any = redis if kind == "sync" else redis.asyncio
        client = module.RedisCluster(host="127.0.0.1", port=cluster.port)
        async with service(kind, client, backdoor.namespace) as locks:
            yield locks
        if kind == "sync":
            client.close()

    @pytest.fixture
    def backdoor(self, cluster: ValkeyCluster) -> Iterator[Backdoor]:
        with redis.RedisCluster(host="127.0.0.1", port=cluster.port) as client:
            client.flushall(target_nodes=redis.RedisCluster.PRIMARIES)
            yield Backdoor(client, "fencing", lambda: 0)

    async def test_first_calls_at_once_go_straight_to_their_nodes(
        self, locks: Any, cluster: ValkeyCluster
    ) -> None:
        with contextlib.ExitStack() as stack:
            nodes = [stack.enter_context(redis.Redis(port=node.port)) for node in cluster.nodes]
            for node in nodes:
                node.config_resetstat()
            await asyncio.gather(*[locks.try_acquire(f"r{number}") for number in range(12)])
            redirected = [node.info("errorstats").get("errorstat_MOVED") for node in nodes]
        assert redirected == [None] * len(nodes)

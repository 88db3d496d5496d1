"""A Redis behind a proxy, and each kind of service over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.proxy import TcpProxy
from fencing.locks.asking import BaseCall
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.contract.facade import ThreadedLocks
from tests.locks.redis.waiting import Server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    import redis


@pytest.fixture
def proxy(redis_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(redis_url) as proxy:
        yield proxy


@pytest.fixture(params=["sync", "async"])
async def locks(
    request: pytest.FixtureRequest, proxy: TcpProxy, redis_namespace: str
) -> AsyncIterator[Any]:
    """A lock service that talks through the proxy, ready: its connection is open.

    Its client waits for answers without limit: what ends a call is the service.
    """
    client = {"socket_timeout": None, "socket_connect_timeout": None}
    if request.param == "sync":
        with RedisLockService.from_url(proxy.url, namespace=redis_namespace, **client) as service:
            locks: Any = ThreadedLocks(service)
            await (await locks.acquire("warm up")).release()
            proxy.reset_counts()
            yield locks
    else:
        async with AsyncRedisLockService.from_url(
            proxy.url, namespace=redis_namespace, **client
        ) as locks:
            await (await locks.acquire("warm up")).release()
            proxy.reset_counts()
            yield locks


@pytest.fixture
def _patient_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clean-up does not give up while a test looks at it, however busy the machine is."""
    monkeypatch.setattr(BaseCall, "clean_up_seconds", 20.0)


@pytest.fixture
def lock_value(redis_client: redis.Redis, redis_namespace: str) -> Callable[[str], str | None]:
    """What Redis has under a resource's lock, looked up without the proxy."""

    def look(resource: str) -> str | None:
        value: Any = redis_client.get(keys_of(redis_namespace, resource)[0])
        return None if value is None else value.decode()

    return look


@pytest.fixture
def server(redis_client: redis.Redis, redis_namespace: str) -> Server:
    return Server(redis_client, redis_namespace)


@pytest.fixture
def others(redis_url: str, redis_namespace: str) -> Any:
    """Another service on the same server, without the proxy."""
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as others:
        yield ThreadedLocks(others)

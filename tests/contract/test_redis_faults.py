"""The Redis lock services keep the contract when things go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.proxy import TcpProxy
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from tests.contract.facade import ThreadedLocks
from tests.contract.faults import FaultContract
from tests.contract.proxied import ProxiedFaults

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


REQUEST = b"EVALSHA"
"""Every request of a service runs a script, by its name."""

# What ends a call is the service: its client waits for answers without limit.
PATIENT = {"socket_timeout": None, "socket_connect_timeout": None}


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestFaults(FaultContract):
    refuses_late_requests = True

    @pytest.fixture
    def proxy(self, redis_url: str) -> Iterator[TcpProxy]:
        with TcpProxy.to(redis_url) as proxy:
            yield proxy

    @pytest.fixture
    def faults(self, proxy: TcpProxy) -> ProxiedFaults:
        return ProxiedFaults(proxy, REQUEST)

    @pytest.fixture
    async def others(self, redis_url: str, redis_namespace: str) -> AsyncIterator[Any]:
        async with AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as others:
            yield others

    @pytest.fixture
    async def locks(
        self, kind: str, proxy: TcpProxy, redis_namespace: str, others: Any
    ) -> AsyncIterator[Any]:
        """It is connected, and Redis knows the scripts."""
        lease = await others.acquire("warm up", ttl=60)
        await lease.renew()
        await others.raise_token(lease, floor=1)
        await others.force_release("warm up")
        await (await others.acquire_all(["warm", "up"])).release()
        if kind == "sync":
            with RedisLockService.from_url(
                proxy.url, namespace=redis_namespace, **PATIENT
            ) as service:
                locks: Any = ThreadedLocks(service)
                await locks.inspect("warm up")
                yield locks
        else:
            async with AsyncRedisLockService.from_url(
                proxy.url, namespace=redis_namespace, **PATIENT
            ) as locks:
                await locks.inspect("warm up")
                yield locks

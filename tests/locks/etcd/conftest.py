"""An etcd behind a proxy, and each kind of service over it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.proxy import TcpProxy
from fencing.locks.etcd import AsyncEtcdLockService, EtcdLockService
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def proxy(etcd_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(etcd_url) as proxy:
        yield proxy


@pytest.fixture(params=["sync", "async"])
async def locks(
    request: pytest.FixtureRequest, proxy: TcpProxy, etcd_namespace: str
) -> AsyncIterator[Any]:
    """A lock service that talks through the proxy."""
    if request.param == "sync":
        with EtcdLockService.from_url(proxy.url, namespace=etcd_namespace) as service:
            yield ThreadedLocks(service)
    else:
        async with AsyncEtcdLockService.from_url(proxy.url, namespace=etcd_namespace) as locks:
            yield locks


@pytest.fixture
async def others(etcd_url: str, etcd_namespace: str) -> AsyncIterator[AsyncEtcdLockService]:
    """Another service on the same locks, as if in another process."""
    async with AsyncEtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as others:
        yield others

"""The ZooKeeper lock services keep the contract, also when things go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from fencing.embedded.proxy import TcpProxy
from fencing.locks.zookeeper.names import Space, line_of
from tests.contract.facade import service_at
from tests.contract.faults import FaultContract, Faults
from tests.contract.proxied import ProxiedFaults
from tests.contract.suite import BadInputContract, LockServiceContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from contextlib import AbstractAsyncContextManager

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])

SESSION_SECONDS = 1.0

# The requests that change something, as they begin: a transaction whose first part is a check.
RAISE = b"\0\0\0\x0e\0\0\0\x0d"


@pytest.fixture
def proxy(zookeeper_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(zookeeper_url) as proxy:
        yield proxy


def service(kind: str, url: str, namespace: str) -> AbstractAsyncContextManager[Any]:
    return service_at(kind, url, namespace=namespace, session_timeout=SESSION_SECONDS)


class Backdoor:
    """What a test does to ZooKeeper behind the service's back."""

    def __init__(self, client: Any, namespace: str, asked: Callable[[], int]) -> None:
        self.client = client
        self.space = Space(namespace)
        self.asked = asked

    def drop(self, resource: str) -> None:
        parent = self.space.parent(resource)
        [holder] = line_of(parent, self.client.get_children(parent))
        self.client.delete(holder.path)


@pytest.fixture(scope="module")
def client(zookeeper_url: str) -> Iterator[Any]:
    client = KazooClient(zookeeper_url.removeprefix("zookeeper://").rstrip("/"))
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.fixture
def backdoor(client: Any, zookeeper_namespace: str, proxy: TcpProxy) -> Backdoor:
    return Backdoor(client, zookeeper_namespace, proxy.commands)


@pytest.fixture
async def locks(kind: str, proxy: TcpProxy, zookeeper_namespace: str) -> AsyncIterator[Any]:
    async with service(kind, proxy.url, zookeeper_namespace) as locks:
        yield locks


class TestZooKeeper(LockServiceContract):
    knows_last_tokens = False


class TestBadInput(BadInputContract):
    pass


class TestFaults(FaultContract):
    counts_from_one = False
    refuses_late_requests = True  # a session that comes again ends its earlier connection
    ends_silence = True  # after two thirds of a session

    @pytest.fixture
    def faults(self, proxy: TcpProxy, zookeeper_namespace: str) -> ProxiedFaults:
        return ProxiedFaults(proxy, f"/{zookeeper_namespace}/".encode())

    @pytest.fixture
    async def others(self, zookeeper_url: str, zookeeper_namespace: str) -> AsyncIterator[Any]:
        async with service("async", zookeeper_url, zookeeper_namespace) as others:
            yield others

    @pytest.fixture
    async def locks(self, locks: Any, others: Any) -> Any:
        """It is connected, and what is above all nodes is there."""
        for name in "rsab":
            await (await others.acquire(name)).release()
        await locks.inspect("warm up")
        return locks

    @pytest.mark.parametrize("fault", ["lose_reply", "withhold_request"])
    async def test_healing_tries_again_where_it_writes(
        self, locks: Any, others: Any, faults: Any, fault: str
    ) -> None:
        faults.what = RAISE
        await self.test_healing_tries_again(locks, others, faults, fault)

    async def test_healing_that_stays_unknown_can_still_be_released(
        self, locks: Any, others: Any, faults: Faults
    ) -> None:
        faults.what = RAISE  # type: ignore[attr-defined]  # of ours
        await super().test_healing_that_stays_unknown_can_still_be_released(locks, others, faults)

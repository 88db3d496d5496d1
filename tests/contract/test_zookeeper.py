"""The ZooKeeper lock services keep the contract, also when things go wrong."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from fencing.embedded.proxy import TcpProxy
from fencing.locks.zookeeper import AsyncZooKeeperLockService, ZooKeeperLockService
from fencing.locks.zookeeper.names import Space, line_of
from tests.contract.facade import ThreadedLocks
from tests.contract.faults import FaultContract, Faults
from tests.contract.suite import BadInputContract, LockServiceContract

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])

SESSION_SECONDS = 1.0

# The requests that change something, as they begin: a transaction whose first part is a check.
RAISE = b"\0\0\0\x0e\0\0\0\x0d"


@pytest.fixture
def proxy(zookeeper_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(zookeeper_url) as proxy:
        yield proxy


@contextlib.asynccontextmanager
async def service(kind: str, url: str, namespace: str) -> AsyncIterator[Any]:
    if kind == "sync":
        with ZooKeeperLockService.from_url(
            url, namespace=namespace, session_timeout=SESSION_SECONDS
        ) as locks:
            yield ThreadedLocks(locks)
    else:
        async with AsyncZooKeeperLockService.from_url(
            url, namespace=namespace, session_timeout=SESSION_SECONDS
        ) as locks:
            yield locks


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


class ZooKeeperFaults:
    """See ``tests.contract.faults.Faults``; by a proxy in between."""

    def __init__(self, proxy: TcpProxy, what: bytes) -> None:
        self.proxy = proxy
        self.what = what
        self.happened: threading.Event = proxy.swallowed

    def lose_reply(self) -> None:
        self.happened = self.proxy.swallowed
        self.proxy.swallow_reply(containing=self.what)

    def withhold_request(self) -> None:
        self.happened = self.proxy.withheld
        self.proxy.withhold_request(containing=self.what)

    def deliver_withheld(self) -> None:
        self.proxy.pass_withheld_on()

    def drop_withheld(self) -> None:
        if self.proxy.withheld.is_set():
            self.proxy.drop_withheld()

    def hold_replies(self) -> None:
        self.happened = self.proxy.held
        self.proxy.hold()

    def deliver_replies(self) -> None:
        self.proxy.release()

    def delay_replies(self, seconds: float) -> None:
        self.proxy.delay(seconds)

    def cut(self) -> None:
        self.proxy.cut()

    def refuse(self) -> None:
        self.proxy.refuse()

    def accept(self) -> None:
        self.proxy.accept()


class TestFaults(FaultContract):
    counts_from_one = False
    refuses_late_requests = True  # a session that comes again ends its earlier connection

    @pytest.fixture
    def faults(self, proxy: TcpProxy, zookeeper_namespace: str) -> ZooKeeperFaults:
        return ZooKeeperFaults(proxy, f"/{zookeeper_namespace}/".encode())

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

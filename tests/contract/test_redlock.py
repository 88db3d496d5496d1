"""The Redlock services keep the contract, also when a majority of their nodes is in trouble."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.embedded import ValkeyProcess
from fencing.embedded.proxy import TcpProxy
from fencing.locks.redis.scripts import keys_of
from tests.contract.faults import FaultContract
from tests.contract.redlocks import service
from tests.contract.suite import BadInputContract, LockServiceContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

SIZE, MAJORITY = 3, 2


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[ValkeyProcess]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ValkeyProcess()) for _ in range(SIZE)]


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid.uuid4().hex}"


class Backdoor:
    """What a test does to the nodes behind the service's back, and what the service has asked."""

    def __init__(self, clients: list[redis.Redis], namespace: str) -> None:
        self.clients = clients
        self.namespace = namespace
        self.count = 0

    def drop(self, resource: str) -> None:
        key = keys_of(self.namespace, resource)[0]
        assert sum(client.delete(key) for client in self.clients) >= MAJORITY

    def asked(self) -> int:
        return self.count

    def watch(self, performer: Any) -> None:
        """Count what is asked of the nodes; a request to all of them is one."""
        gather: Callable[..., Any] = performer._gather

        def counted(*given: Any) -> Any:
            self.count += 1
            return gather(*given)

        performer._gather = counted


class ThreeNodes:
    @pytest.fixture
    def backdoor(self, nodes: list[ValkeyProcess], namespace: str) -> Iterator[Backdoor]:
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(redis.Redis(port=node.port)) for node in nodes]
            yield Backdoor(clients, namespace)

    @pytest.fixture
    async def locks(
        self, kind: str, nodes: list[ValkeyProcess], namespace: str, backdoor: Backdoor
    ) -> AsyncIterator[Any]:
        async with service(kind, nodes, namespace, node_timeout=2.0) as locks:
            backdoor.watch((locks.locks if kind == "sync" else locks)._nodes)
            yield locks


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestRedlock(ThreeNodes, LockServiceContract):
    pass


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestBadInput(ThreeNodes, BadInputContract):
    async def test_an_order_across_processes_is_not_promised(
        self, locks: Any, backdoor: Any
    ) -> None:
        await self.refuses(
            backdoor,
            ValueError,
            lambda: locks.acquire("r", fair=True),
            lambda: locks.acquire_all(["r"], fair=True),
        )


class All:
    """What has happened when it has happened everywhere."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def wait(self, seconds: float) -> bool:
        return all(event.wait(seconds) for event in self.events)

    def is_set(self) -> bool:
        return all(event.is_set() for event in self.events)


class FaultsOfAMajority:
    """See ``tests.contract.faults.Faults``; on two of three nodes, by proxies in between."""

    REQUEST = b"EVALSHA"

    def __init__(self, proxies: list[TcpProxy]) -> None:
        self.proxies = proxies
        self.happened = All([])

    def all_of(self, name: str) -> All:
        return All([getattr(proxy, name) for proxy in self.proxies])

    def lose_reply(self) -> None:
        self.happened = self.all_of("swallowed")
        for proxy in self.proxies:
            proxy.swallow_reply(containing=self.REQUEST)

    def withhold_request(self) -> None:
        self.happened = self.all_of("withheld")
        for proxy in self.proxies:
            proxy.withhold_request(containing=self.REQUEST)

    def deliver_withheld(self) -> None:
        for proxy in self.proxies:
            proxy.pass_withheld_on()

    def drop_withheld(self) -> None:
        for proxy in self.proxies:
            if proxy.withheld.is_set():
                proxy.drop_withheld()

    def hold_replies(self) -> None:
        self.happened = self.all_of("held")
        for proxy in self.proxies:
            proxy.hold()

    def deliver_replies(self) -> None:
        for proxy in self.proxies:
            proxy.release()

    def delay_replies(self, seconds: float) -> None:
        for proxy in self.proxies:
            proxy.delay(seconds)

    def cut(self) -> None:
        for proxy in self.proxies:
            proxy.cut()

    def refuse(self) -> None:
        for proxy in self.proxies:
            proxy.refuse()

    def accept(self) -> None:
        for proxy in self.proxies:
            proxy.accept()


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestFaultsOfAMajority(FaultContract):
    refuses_late_requests = True

    @pytest.fixture
    def proxies(self, nodes: list[ValkeyProcess]) -> Iterator[list[TcpProxy]]:
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(TcpProxy.to(node.url)) for node in nodes[:MAJORITY]]

    @pytest.fixture
    def faults(self, proxies: list[TcpProxy]) -> FaultsOfAMajority:
        return FaultsOfAMajority(proxies)

    @pytest.fixture
    async def others(self, nodes: list[ValkeyProcess], namespace: str) -> AsyncIterator[Any]:
        async with service("async", nodes, namespace, node_timeout=2.0) as others:
            yield others

    @pytest.fixture
    async def locks(
        self,
        kind: str,
        proxies: list[TcpProxy],
        nodes: list[ValkeyProcess],
        namespace: str,
        others: Any,
    ) -> AsyncIterator[Any]:
        """It is connected, and the nodes know the scripts."""
        lease = await others.acquire("warm up", ttl=60)
        await lease.renew()
        await lease.release()
        behind = [*proxies, *nodes[MAJORITY:]]
        async with service(kind, behind, namespace, node_timeout=1.0) as locks:
            await locks.inspect("warm up")
            yield locks

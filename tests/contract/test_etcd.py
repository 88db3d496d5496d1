"""The etcd lock services keep the contract, also when things go wrong."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.etcd import ask_etcd
from fencing.embedded.proxy import TcpProxy
from fencing.locks.etcd import AsyncEtcdLockService, EtcdLockService
from fencing.locks.etcd.keys import Keys
from tests.contract.facade import ThreadedLocks
from tests.contract.faults import FaultContract
from tests.contract.suite import BadInputContract, LockServiceContract

if TYPE_CHECKING:
    import threading
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])

LINGERS = 3.0
"""etcd keeps what is shorter than 2 seconds for so long, and looks twice a second what is over."""


@contextlib.asynccontextmanager
async def service(kind: str, url: str, namespace: str) -> AsyncIterator[Any]:
    if kind == "sync":
        with EtcdLockService.from_url(url, namespace=namespace) as locks:
            yield ThreadedLocks(locks)
    else:
        async with AsyncEtcdLockService.from_url(url, namespace=namespace) as locks:
            yield locks


class Backdoor:
    """What a test does to etcd behind the service's back."""

    def __init__(self, url: str, namespace: str, proxy: TcpProxy) -> None:
        self.endpoint = url.replace("etcd", "http").rstrip("/")
        self.keys = Keys(namespace)
        self.proxy = proxy

    def drop(self, resource: str) -> None:
        places = requests_range(self.keys.places(resource))
        assert ask_etcd(self.endpoint, "v3/kv/deleterange", places)["deleted"] == "1"

    def asked(self) -> int:
        return self.proxy.commands()


def requests_range(keys: tuple[bytes, bytes]) -> dict[str, str]:
    from fencing.locks.etcd.requests import _keys

    return _keys(keys)


@pytest.fixture
def proxy(etcd_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(etcd_url) as proxy:
        yield proxy


@pytest.fixture
async def locks(kind: str, proxy: TcpProxy, etcd_namespace: str) -> AsyncIterator[Any]:
    async with service(kind, proxy.url, etcd_namespace) as locks:
        yield locks


@pytest.fixture
def backdoor(etcd_url: str, etcd_namespace: str, proxy: TcpProxy) -> Backdoor:
    return Backdoor(etcd_url, etcd_namespace, proxy)


class TestEtcd(LockServiceContract):
    lingers = LINGERS
    knows_last_tokens = False


class TestBadInput(BadInputContract):
    pass


class EtcdFaults:
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
    """The faults befall transactions, which change locks; some are also tried on leases below."""

    counts_from_one = False
    refuses_late_requests = True

    @pytest.fixture
    def faults(self, proxy: TcpProxy) -> EtcdFaults:
        return EtcdFaults(proxy, b"/v3/kv/txn")

    @pytest.fixture
    async def others(self, etcd_url: str, etcd_namespace: str) -> AsyncIterator[Any]:
        async with service("async", etcd_url, etcd_namespace) as others:
            yield others

    @pytest.fixture
    async def locks(self, locks: Any) -> Any:
        """It is connected."""
        await locks.inspect("warm up")
        return locks


class TestFaultsOfLeases:
    """The same, where it is the etcd lease of which nothing is heard."""

    counts_from_one = TestFaults.counts_from_one
    refuses_late_requests = TestFaults.refuses_late_requests
    late, others, locks = TestFaults.late, TestFaults.others, TestFaults.locks

    @pytest.fixture
    def faults(self, proxy: TcpProxy) -> EtcdFaults:
        return EtcdFaults(proxy, b"/v3/lease/")

    test_acquire = FaultContract.test_acquire_tries_again
    test_acquire_all = FaultContract.test_acquire_all_tries_again
    test_renew = FaultContract.test_renew_tries_again
    test_late_renewal = FaultContract.test_a_renewal_that_arrives_late_gives_nothing_back
    test_late_acquire = FaultContract.test_an_acquire_that_arrives_after_the_release_takes_nothing
    test_late_waiter = (
        FaultContract.test_an_acquire_that_is_delivered_while_it_waits_leaves_no_place_behind
    )

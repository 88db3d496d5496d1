"""The etcd lock services keep the contract, also when things go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.etcd import ask_etcd
from fencing.embedded.proxy import TcpProxy
from fencing.locks.etcd.keys import Keys
from tests.contract.facade import service_at
from tests.contract.faults import FaultContract
from tests.contract.proxied import ProxiedFaults
from tests.contract.suite import BadInputContract, LockServiceContract

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])

LINGERS = 3.0
"""etcd keeps what is shorter than 2 seconds for so long, and looks twice a second what is over."""


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
    async with service_at(kind, proxy.url, namespace=etcd_namespace) as locks:
        yield locks


@pytest.fixture
def backdoor(etcd_url: str, etcd_namespace: str, proxy: TcpProxy) -> Backdoor:
    return Backdoor(etcd_url, etcd_namespace, proxy)


class TestEtcd(LockServiceContract):
    lingers = LINGERS
    knows_last_tokens = False


class TestBadInput(BadInputContract):
    pass


class TestFaults(FaultContract):
    """The faults befall transactions, which change locks; some are also tried on leases below."""

    counts_from_one = False
    refuses_late_requests = True

    @pytest.fixture
    def faults(self, proxy: TcpProxy) -> ProxiedFaults:
        return ProxiedFaults(proxy, b"/v3/kv/txn")

    @pytest.fixture
    async def others(self, etcd_url: str, etcd_namespace: str) -> AsyncIterator[Any]:
        async with service_at("async", etcd_url, namespace=etcd_namespace) as others:
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
    def faults(self, proxy: TcpProxy) -> ProxiedFaults:
        return ProxiedFaults(proxy, b"/v3/lease/")

    test_acquire = FaultContract.test_acquire_tries_again
    test_acquire_all = FaultContract.test_acquire_all_tries_again
    test_renew = FaultContract.test_renew_tries_again
    test_late_renewal = FaultContract.test_a_renewal_that_arrives_late_gives_nothing_back
    test_late_acquire = FaultContract.test_an_acquire_that_arrives_after_the_release_takes_nothing
    test_late_waiter = (
        FaultContract.test_an_acquire_that_is_delivered_while_it_waits_leaves_no_place_behind
    )

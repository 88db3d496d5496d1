"""The PostgreSQL lock services keep the contract, also when things go wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencing.embedded.proxy import TcpProxy
from tests.contract.facade import service_at
from tests.contract.faults import FaultContract
from tests.contract.proxied import ProxiedFaults
from tests.contract.suite import BadInputContract, LockServiceContract
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

KINDS = ["sync", "async"]

REQUEST = b"fencing_"
"""Every request of a service is prepared under such a name."""


class Backdoor:
    """What a test does to the database behind the service's back."""

    def __init__(self, url: str, proxy: TcpProxy) -> None:
        self.url = plain_url(url)
        self.proxy = proxy

    def drop(self, resource: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            done = connection.execute(
                "UPDATE fencing.lease SET expires_at = '-infinity', holder = '' "
                "WHERE resource = %s AND holder <> ''",
                [resource],
            )
            assert done.rowcount == 1

    def asked(self) -> int:
        # Each request ends with one, prepared or not.
        return self.proxy.commands("S", "Q")


class OnPostgres:
    """One server, behind a proxy that counts."""

    @pytest.fixture
    def proxy(self, fenced_database: str) -> Iterator[TcpProxy]:
        with TcpProxy.to(fenced_database) as proxy:
            yield proxy

    @pytest.fixture
    async def locks(self, kind: str, proxy: TcpProxy) -> AsyncIterator[Any]:
        async with service_at(kind, proxy.url) as locks:
            yield locks

    @pytest.fixture
    def backdoor(self, fenced_database: str, proxy: TcpProxy) -> Backdoor:
        return Backdoor(fenced_database, proxy)


@pytest.mark.parametrize("kind", KINDS)
class TestPostgres(OnPostgres, LockServiceContract):
    pass


@pytest.mark.parametrize("kind", KINDS)
class TestBadInput(OnPostgres, BadInputContract):
    pass


@pytest.mark.parametrize("kind", KINDS)
class TestFaults(FaultContract):
    refuses_late_requests = True

    @pytest.fixture
    def proxy(self, fenced_database: str) -> Iterator[TcpProxy]:
        with TcpProxy.to(fenced_database) as proxy:
            yield proxy

    @pytest.fixture
    def faults(self, proxy: TcpProxy) -> ProxiedFaults:
        return ProxiedFaults(proxy, REQUEST)

    @pytest.fixture
    async def others(self, fenced_database: str) -> AsyncIterator[Any]:
        async with service_at("async", fenced_database) as others:
            yield others

    @pytest.fixture
    async def locks(self, kind: str, proxy: TcpProxy) -> AsyncIterator[Any]:
        """It is connected."""
        async with service_at(kind, proxy.url) as locks:
            await locks.inspect("warm up")
            yield locks

"""A ZooKeeper, services on it, and a client that looks behind their backs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kazoo.client import KazooClient

from fencing import AsyncZooKeeperLockService, ZooKeeperLockService
from fencing.embedded.zookeeper import ZooKeeperProcess
from fencing.locks.zookeeper.names import Space

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

SESSION_SECONDS = 1.0


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeperProcess]:
    """A server of this test's own."""
    with ZooKeeperProcess() as server:
        yield server


@pytest.fixture
def locks(zookeeper_url: str, zookeeper_namespace: str) -> Iterator[ZooKeeperLockService]:
    with ZooKeeperLockService.from_url(
        zookeeper_url, namespace=zookeeper_namespace, session_timeout=SESSION_SECONDS
    ) as locks:
        yield locks


@pytest.fixture
async def alocks(
    zookeeper_url: str, zookeeper_namespace: str
) -> AsyncIterator[AsyncZooKeeperLockService]:
    async with AsyncZooKeeperLockService.from_url(
        zookeeper_url, namespace=zookeeper_namespace, session_timeout=SESSION_SECONDS
    ) as locks:
        yield locks


class Looker:
    """Looks at the nodes."""

    def __init__(self, client: Any, namespace: str) -> None:
        self.client = client
        self.space = Space(namespace)

    def nodes(self, resource: str) -> list[str]:
        parent = self.space.parent(resource)
        return self.client.get_children(parent) if self.client.exists(parent) else []


@pytest.fixture
def looker(zookeeper_url: str, zookeeper_namespace: str) -> Iterator[Looker]:
    client = KazooClient(zookeeper_url.removeprefix("zookeeper://").rstrip("/"))
    client.start()
    yield Looker(client, zookeeper_namespace)
    client.stop()
    client.close()

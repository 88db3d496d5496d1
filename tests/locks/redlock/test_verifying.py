"""Verifying the nodes of a Redlock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing import AsyncRedlockService, LockServiceError, RedlockService

if TYPE_CHECKING:
    from fencing.embedded import ValkeyProcess

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])


async def verified(kind: str, *places: str) -> Any:
    url = f"redlock://{','.join(places)}/0"
    if kind == "sync":
        with RedlockService.from_url(url) as locks:
            return locks.verify()
    async with AsyncRedlockService.from_url(url) as twin:
        return await twin.verify()


def codes(verification: Any, severity: str) -> list[str]:
    return [each.code for each in verification.findings if each.severity == severity]


async def test_all_nodes_are_looked_at(kind: str, own_nodes: list[ValkeyProcess]) -> None:
    places = [f"127.0.0.1:{node.port}" for node in own_nodes]
    found = await verified(kind, *places)
    assert found.nodes == tuple(places)
    assert "persistence-none" in codes(found, "warning")
    assert codes(found, "error") == []
    assert found.passes()


async def test_one_server_under_two_names_is_found(
    kind: str, own_nodes: list[ValkeyProcess]
) -> None:
    one, other, _ = own_nodes
    found = await verified(
        kind, f"127.0.0.1:{one.port}", f"localhost:{one.port}", f"127.0.0.1:{other.port}"
    )
    assert codes(found, "error") == ["node-twice"]
    [twice] = [each for each in found.findings if each.code == "node-twice"]
    assert f"127.0.0.1:{one.port} and localhost:{one.port}" in twice.message


async def test_a_node_that_is_gone_weakens_and_without_a_majority_nothing_works(
    kind: str, own_nodes: list[ValkeyProcess]
) -> None:
    here = [f"127.0.0.1:{node.port}" for node in own_nodes]
    found = await verified(kind, *here[:2], "127.0.0.1:1")
    assert "node-unreachable" in codes(found, "warning")
    assert found.passes()
    found = await verified(kind, here[0], "127.0.0.1:1", "127.0.0.1:2")
    assert codes(found, "error") == ["node-unreachable"] * 2
    with pytest.raises(LockServiceError):
        await verified(kind, "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3")


async def test_what_is_wrong_with_one_node_names_it(
    kind: str, own_nodes: list[ValkeyProcess]
) -> None:
    node = own_nodes[2]
    with redis.Redis(port=node.port) as client:
        client.config_set("maxmemory", "100mb")
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            found = await verified(kind, *[f"127.0.0.1:{each.port}" for each in own_nodes])
        finally:
            client.config_set("maxmemory", "0")
            client.config_set("maxmemory-policy", "noeviction")
    [evicts] = [each for each in found.findings if each.code == "maxmemory-evicts"]
    assert evicts.message.startswith(f"127.0.0.1:{node.port}: ")

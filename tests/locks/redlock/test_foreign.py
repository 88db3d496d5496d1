"""What somebody else has written where nodes keep locks is told, and left alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing import LockNotAcquiredError, LockServiceError
from fencing.locks.redis.scripts import keys_of
from fencing.request import MAX_TOKEN
from tests.contract.redlocks import service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencing.embedded import ValkeyProcess

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])

NUMBERS = [str(MAX_TOKEN + 1), "9" * 5000]


@pytest.fixture
async def locks(kind: str, own_nodes: list[ValkeyProcess], namespace: str) -> AsyncIterator[Any]:
    async with service(kind, own_nodes, namespace) as locks:
        yield locks


def write(nodes: list[ValkeyProcess], key: bytes, value: str) -> None:
    for node in nodes:
        with redis.Redis(port=node.port) as client:
            client.set(key, value, px=60_000)


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_number_instead_of_a_token_is_somebody_s_lock(
    locks: Any, own_nodes: list[ValkeyProcess], namespace: str, number: str
) -> None:
    write(own_nodes, keys_of(namespace, "r")[0], f"{number}:ab:somebody")
    assert (await locks.inspect("r")).token is None
    with pytest.raises(LockNotAcquiredError, match=r"somebody \(token unknown\)"):
        await locks.acquire("r", blocking_timeout=0.01)


@pytest.mark.parametrize("number", NUMBERS)
async def test_a_number_instead_of_a_counter_is_told(
    locks: Any, own_nodes: list[ValkeyProcess], namespace: str, number: str
) -> None:
    write(own_nodes, keys_of(namespace, "r")[1], number)
    assert (await locks.inspect("r")).counter is None
    with pytest.raises(LockServiceError, match="counter"):
        await locks.try_acquire("r")

"""A release tells whoever waits before it is answered itself, where somebody is likely to wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencing.locks.redis.listening import WANTED
from tests.locks.redis.waiting import begun, service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencing.embedded.proxy import TcpProxy
    from tests.locks.redis.waiting import Server


@pytest.fixture(params=["sync", "async"])
async def holding(request, proxy: TcpProxy, redis_namespace: str) -> AsyncIterator[Any]:
    async with service(request.param, proxy.url, redis_namespace) as locks:
        yield locks


@pytest.fixture(params=["sync", "async"])
async def waiting(request, redis_url: str, redis_namespace: str) -> AsyncIterator[Any]:
    async with service(request.param, redis_url, redis_namespace) as locks:
        yield locks


async def pair(locks: Any, proxy: TcpProxy, resource: str = "r") -> int:
    """Take a free lock and give it back; how much was sent ahead."""
    lease = await locks.acquire(resource, ttl=60)
    proxy.reset_counts()
    await lease.release()
    return proxy.commands("EXISTS")


async def hand_over(holding: Any, waiting: Any, server: Server, resource: str = "r") -> Any:
    lease = await holding.acquire(resource, ttl=60)
    handed = begun(waiting, resource)
    await server.queued(resource=resource)
    await lease.release()
    return await handed


async def test_a_lock_that_nobody_has_waited_for_is_just_released(holding, proxy):
    assert await pair(holding, proxy) == await pair(holding, proxy) == 0


async def test_whoever_has_handed_a_lock_over_expects_to_do_so_again(
    holding, waiting, proxy, server
):
    handed = await hand_over(holding, waiting, server)
    await handed.release()
    assert await pair(holding, proxy, "another") == 0
    assert await pair(holding, proxy) == 1
    assert await pair(holding, proxy) == 0, "nobody waited the last time"


async def test_whoever_has_waited_expects_others_to_do_so(holding, waiting, proxy, server):
    handed = await hand_over(waiting, holding, server)
    proxy.reset_counts()
    await handed.release()
    assert proxy.commands("EXISTS") == 1
    assert await pair(holding, proxy) == 0


async def test_of_many_resources_the_last_ones_are_remembered(holding):
    room = getattr(holding, "locks", holding)._redis._waiters
    for number in range(WANTED + 1):
        room.note_wanted(f"r{number}", wanted=True)
    room.note_wanted("r1", wanted=True)
    room.note_wanted("last", wanted=True)
    assert len(room.wanted) == WANTED
    assert {"r1", "r3", "last"} <= room.wanted.keys()
    assert room.wanted.keys().isdisjoint({"r0", "r2"})

"""A service that is closed beside calls: they come to their end."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.facade import ThreadedLocks, in_thread
from tests.contract.redlocks import service

if TYPE_CHECKING:
    from fencing.embedded import ValkeyProcess


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_many_calls_beside_many_closings_all_succeed(
    kind: str, own_nodes: list[ValkeyProcess], namespace: str
) -> None:
    async with service(kind, own_nodes, namespace, node_timeout=2.0) as locks:

        async def close() -> None:
            if isinstance(locks, ThreadedLocks):
                # Two at once: what one has for the threads is not to be in the other's way.
                closing: Any = locks.locks.close
                await asyncio.gather(in_thread(closing), in_thread(closing))
            else:
                await locks.aclose()

        async def work(number: int) -> None:
            for _ in range(20):
                async with locks.acquire(f"r{number}", ttl=60):
                    pass

        working = asyncio.gather(*map(work, range(3)))
        while not working.done():
            await close()
            await asyncio.sleep(0)
        await working

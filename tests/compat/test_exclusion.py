"""Locks of redis-py's own and ours exclude each other, whoever came first, sync or async."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

KINDS = list(itertools.product(["sync", "async"], ["redis-py", "fencing"]))


@pytest.mark.parametrize("first", KINDS, ids="-".join)
@pytest.mark.parametrize("second", KINDS, ids="-".join)
async def test_one_after_the_other(
    first: tuple[str, str], second: tuple[str, str], locks_at: Any, redis_url: str, name: str
) -> None:
    holder = locks_at(*first, redis_url)(name, timeout=60)
    other = locks_at(*second, redis_url)(name, timeout=60)
    for _ in range(2):
        assert await holder.acquire()
        assert not await other.acquire(blocking=False)
        assert await other.locked()
        assert not await other.owned()
        await holder.release()
        assert await other.acquire(blocking=False)
        await other.release()


async def test_all_at_once(locks_at: Any, redis_url: str, name: str) -> None:
    inside = done = 0

    async def work(lock: Any) -> None:
        nonlocal inside, done
        for _ in range(15):
            async with lock:
                assert inside == 0
                inside += 1
                await asyncio.sleep(0)
                inside -= 1
                done += 1

    makers = [locks_at(*kind, redis_url) for kind in KINDS * 2]
    workers = [work(make(name, timeout=60, sleep=0.001)) for make in makers]
    await asyncio.wait_for(asyncio.gather(*workers), 100)
    assert done == 15 * len(makers)

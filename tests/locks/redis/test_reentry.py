"""What is asked for when a lease is acquired again: added to it, or refused; sync and async."""

from __future__ import annotations

import queue
from typing import TYPE_CHECKING, Any

import pytest

from fencing import FencingUsageError, RedisLockService
from fencing.locks.redis import AsyncRedisLockService

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

AGAIN: dict[str, Any] = {"reentrant": True, "ttl": 1}


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture
async def async_locks(redis_url: str, redis_namespace: str) -> AsyncIterator[AsyncRedisLockService]:
    async with AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.mark.parametrize(
    "outer", [{}, {"keepalive": True}, {"keepalive": True, "max_lifetime": 61}]
)
def test_a_shorter_life_is_refused(locks: RedisLockService, outer: dict[str, Any]) -> None:
    with locks.acquire("r", ttl=30, **outer) as lease:
        lives_until, kept = lease.lives_until, lease.kept
        with pytest.raises(FencingUsageError, match="no max_lifetime=60"):
            locks.acquire("r", keepalive=True, max_lifetime=60, **AGAIN)
        with pytest.raises(FencingUsageError, match="'r'"):
            locks.try_acquire("r", keepalive=True, max_lifetime=60, **AGAIN)
        assert (lease.lives_until, lease.kept) == (lives_until, kept)
    assert lease.released  # what was refused is not counted


def test_a_life_that_is_short_enough_is_granted(locks: RedisLockService) -> None:
    wishes: dict[str, Any] = {"keepalive": True, "max_lifetime": 60}
    with locks.acquire("r", ttl=30, **wishes) as outer:
        with locks.acquire("r", **wishes, **AGAIN) as inner:
            assert inner is outer
        with locks.acquire("r", keepalive=True, max_lifetime=61, **AGAIN):
            pass
        assert not outer.released


def test_keepalive_is_the_whole_lease_s(locks: RedisLockService) -> None:
    with locks.acquire("r", ttl=30) as outer:
        with locks.acquire("r", keepalive=True, **AGAIN):
            pass
        assert outer.kept


def test_on_lost_is_called_besides_the_others(locks: RedisLockService) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    outer = locks.acquire("r", ttl=0.2, on_lost=lambda _: told.put("outer"))
    inner = locks.acquire("r", ttl=0.1, reentrant=True, on_lost=lambda _: told.put("inner"))
    assert inner is outer
    assert [told.get(timeout=20), told.get(timeout=20)] == ["outer", "inner"]


async def test_in_asyncio(async_locks: AsyncRedisLockService) -> None:
    async with async_locks.acquire("r", ttl=30) as outer:
        for wishes in ({"cancel_on_loss": True}, {"keepalive": True, "max_lifetime": 60}):
            (name,) = wishes.keys() - {"keepalive"}
            with pytest.raises(FencingUsageError, match=f"no {name}="):
                await async_locks.acquire("r", **wishes, **AGAIN)
            with pytest.raises(FencingUsageError, match=f"no {name}="):
                await async_locks.try_acquire("r", **wishes, **AGAIN)
        assert not outer.cancel_on_loss
    assert outer.released


async def test_what_the_outer_block_asked_for_may_be_asked_for_again(
    async_locks: AsyncRedisLockService,
) -> None:
    async with (
        async_locks.acquire("r", ttl=30, cancel_on_loss=True) as outer,
        async_locks.acquire("r", cancel_on_loss=True, **AGAIN) as inner,
    ):
        assert inner is outer

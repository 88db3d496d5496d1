"""What is asked for when a lease is acquired again: added to it, or refused; sync and async."""

from __future__ import annotations

import asyncio
import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from fencing import FencingUsageError, LockNotAcquiredError, RedisLockService
from fencing.clock import now
from fencing.lease import base, blocks, leases
from fencing.locks.redis import AsyncRedisLockService
from tests.support.interrupting import handled_before_line

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fencing.embedded.proxy import TcpProxy

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
    outer: Any = locks.acquire("r", ttl=60, on_lost=lambda _: told.put("outer"))
    inner = locks.acquire("r", ttl=1, reentrant=True, on_lost=lambda _: told.put("inner"))
    assert inner is outer
    outer.trusted_until = now()  # a short ttl could be over before that, on a busy machine
    outer.watcher.notice(outer)
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


# A lease that is just being given back, and of which Redis may have heard already.


def test_what_another_thread_gives_back_is_not_entered_again(
    proxy: TcpProxy, redis_url: str, redis_namespace: str
) -> None:
    with (
        RedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks,
        RedisLockService.from_url(redis_url, namespace=redis_namespace) as others,
        ThreadPoolExecutor(1) as elsewhere,
    ):
        lease = locks.acquire("r", ttl=30)
        proxy.hold()
        releasing = elsewhere.submit(lease.release)
        try:
            assert proxy.held.wait(20)
            with others.acquire("r", ttl=30):
                threading.Timer(0.1, proxy.release).start()
                assert locks.try_acquire("r", reentrant=True) is None
        finally:
            proxy.release()
        releasing.result()
        assert not lease.lost


async def test_what_another_task_gives_back_is_not_entered_again(
    proxy: TcpProxy, redis_url: str, redis_namespace: str
) -> None:
    async with (
        AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks,
        AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as others,
    ):
        lease = await locks.acquire("r", ttl=30)
        proxy.hold()
        releasing = asyncio.ensure_future(lease.release())
        assert await asyncio.to_thread(proxy.held.wait, 20)
        other = await others.acquire("r", ttl=30)
        asking = asyncio.get_running_loop().call_later(0.1, proxy.release)
        try:
            assert await locks.try_acquire("r", reentrant=True) is None
        finally:
            asking.cancel()
            proxy.release()
        await releasing
        assert not lease.lost
        entering = asyncio.ensure_future(locks.acquire("r", ttl=30, reentrant=True)._begin())
        await other.release()
        assert await entering is not lease


@pytest.mark.parametrize("line", ["self.service.release(self)", "self._free()"])
def test_a_handler_does_not_wait_for_what_its_own_thread_gives_back(
    line: str, locks: RedisLockService
) -> None:
    found: list[Any] = []

    def handle() -> None:
        with pytest.raises(LockNotAcquiredError, match="signal handler") as caught:
            locks.acquire("r", reentrant=True)
        found.append(caught.value.resource)
        found.append(locks.try_acquire("r", reentrant=True))

    lease = locks.acquire("r", ttl=30)
    with handled_before_line(line, handle, leases):
        lease.release()
    assert found == ["r", None]
    assert lease.released
    with locks.acquire("r", ttl=30, blocking=False) as another:
        assert another is not lease


@pytest.mark.parametrize("way", ["release", "block"])
def test_a_handler_may_release_what_its_thread_is_just_giving_back(
    way: str, locks: RedisLockService, redis_client: Any
) -> None:
    def released() -> int:
        stats = redis_client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

    number, was_handled = 0, True
    while was_handled:
        number += 1
        lost: list[Any] = []
        lease = locks.acquire("r", ttl=30, on_lost=lost.append)
        before = released()
        if way == "block":
            lease.__enter__()
        with handled_before_line(number, lease.release, leases, blocks, base) as lines:
            lease.__exit__(None, None, None) if way == "block" else lease.release()
        was_handled = len(lines) >= number
        assert released() - before == 1, lines[-3:]
        assert lease.released
        assert not lease.lost
        assert not lost
    assert number > 5

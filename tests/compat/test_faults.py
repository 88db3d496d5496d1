"""Lost answers, silence, cancellations: no lock is left behind, and none is waited for in vain."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.compat.redis import steps
from fencing.compat.redis.model import Memory
from fencing.compat.redis.performing import Performer
from tests.compat.kinds import retries
from tests.support.waiting import happened

if TYPE_CHECKING:
    from fencing.compat.redis import AsyncFencedLock
    from fencing.embedded.proxy import TcpProxy
    from tests.compat.kinds import Locks

ERRORS = (redis.ConnectionError, redis.TimeoutError)


@pytest.fixture
def retrying(locks_at: Any, flavour: str, proxy: TcpProxy) -> Locks:
    """Our locks behind the proxy, by a client that repeats what was not answered."""
    return locks_at(flavour, "fencing", proxy.url, **retries(flavour, 3))


@pytest.fixture
def unretrying(locks_at: Any, flavour: str, proxy: TcpProxy) -> Locks:
    """Our locks behind the proxy, by a client that repeats nothing."""
    return locks_at(flavour, "fencing", proxy.url, **retries(flavour, 0))


async def warm(locks: Locks, name: str) -> None:
    """Have a connection open, and the scripts in Redis."""
    async with locks(name, timeout=30):
        pass


class TestLostAnswers:
    @pytest.mark.parametrize("timeout", [30, None])
    async def test_a_repeated_acquire_finds_its_own_lock(
        self, retrying: Locks, name: str, proxy: TcpProxy, redis_client: redis.Redis, timeout: Any
    ) -> None:
        await warm(retrying, name)
        proxy.reset_counts()
        lock = retrying(name, timeout=timeout)
        proxy.swallow_reply(containing=b"EVALSHA")
        assert await lock.acquire(blocking=False)
        assert proxy.swallowed.is_set()
        assert proxy.commands("EVALSHA") == 2
        assert redis_client.get(name) == lock.token()
        if timeout:
            assert lock.lease.token == 2
        await lock.release()
        assert redis_client.get(name) is None

    @pytest.mark.parametrize(
        ("left", "then"), [(1_000, (20_000, 30_000)), (90_000, (80_000, 90_000))]
    )
    def test_a_repeated_acquire_rearms_the_lock_and_never_shortens_it(
        self, redis_client: redis.Redis, name: str, fence_key: str, left: int, then: tuple[int, int]
    ) -> None:
        performer = Performer(redis_client, (name.encode(), fence_key.encode()))
        for repeated in (False, True):
            if repeated:
                redis_client.pexpire(name, left)
            grant = performer.perform(steps.acquire(name, Memory(), b"value", "a" * 32, 30))
            assert grant is not None
            assert grant.token == 1
        assert then[0] < redis_client.pttl(name) <= then[1]

    async def test_a_repeated_release_is_no_error(
        self, retrying: Locks, name: str, proxy: TcpProxy, redis_client: redis.Redis
    ) -> None:
        await warm(retrying, name)
        lock = retrying(name, timeout=30)
        await lock.acquire()
        lease = lock.lease
        proxy.swallow_reply(containing=b"EVALSHA")
        await lock.release()
        assert proxy.swallowed.is_set()
        assert redis_client.get(name) is None
        assert (lease.released, lease.lost) == (True, False)

    async def test_an_acquire_that_is_not_repeated_leaves_no_lock(
        self, unretrying: Locks, name: str, proxy: TcpProxy, redis_client: redis.Redis
    ) -> None:
        await warm(unretrying, name)
        lock = unretrying(name)
        proxy.swallow_reply(containing=b"EVALSHA")
        with pytest.raises(ERRORS):
            await lock.acquire()
        assert proxy.swallowed.is_set()
        assert redis_client.get(name) is None
        assert lock.token() is None
        assert await lock.acquire(blocking=False)
        await lock.release()

    async def test_a_release_that_is_not_repeated_leaves_no_lock(
        self, unretrying: Locks, name: str, proxy: TcpProxy, redis_client: redis.Redis
    ) -> None:
        await warm(unretrying, name)
        lock = unretrying(name)
        await lock.acquire()
        proxy.withhold_request(b"EVALSHA")
        with pytest.raises(ERRORS):
            await lock.release()
        proxy.drop_withheld()
        assert redis_client.get(name) is None

    async def test_what_is_given_back_is_so_though_a_connection_is_lost(
        self, unretrying: Locks, name: str, proxy: TcpProxy, redis_client: redis.Redis
    ) -> None:
        await warm(unretrying, name)
        proxy.swallow_reply(containing=b"EVALSHA", silently=True)
        acquiring = asyncio.ensure_future(unretrying(name).acquire())
        await happened(proxy.swallowed)
        assert redis_client.exists(name)
        proxy.drop_request(b"EVALSHA")
        proxy.cut()
        with pytest.raises(ERRORS):
            await acquiring
        assert proxy.dropped.is_set()
        assert not redis_client.exists(name)

    async def test_what_could_not_be_given_back_is_before_the_next_attempt(
        self, unretrying: Locks, name: str, proxy: TcpProxy, redis_client: redis.Redis
    ) -> None:
        await warm(unretrying, name)
        lock = unretrying(name)
        proxy.hold()
        acquiring = asyncio.ensure_future(lock.acquire())
        await happened(proxy.held)
        assert redis_client.get(name) is not None
        proxy.refuse()
        with pytest.raises(ERRORS):
            await acquiring
        assert redis_client.get(name) is not None  # nobody could tell Redis
        proxy.release()
        proxy.accept()
        assert await lock.acquire(blocking=False)
        assert redis_client.get(name) == lock.token()
        await lock.release()


async def test_what_was_given_back_is_not_acquired_late(
    unretrying: Locks, name: str, proxy: TcpProxy, redis_client: redis.Redis
) -> None:
    await warm(unretrying, name)
    proxy.withhold_request(b"EVALSHA")
    with pytest.raises(ERRORS):
        await unretrying(name).acquire()
    calls = redis_client.info("commandstats")["cmdstat_evalsha"]["calls"]
    proxy.pass_withheld_on()
    while redis_client.info("commandstats")["cmdstat_evalsha"]["calls"] == calls:  # noqa: ASYNC110 - Redis tells nobody
        await asyncio.sleep(0.001)
    assert redis_client.get(name) is None


@pytest.mark.parametrize("late", ["answer", "request"])
async def test_a_lock_that_had_run_out_before_the_answer_came_is_not_acquired(
    locks_at: Any,
    flavour: str,
    proxy: TcpProxy,
    name: str,
    redis_client: redis.Redis,
    late: str,
) -> None:
    locks = locks_at(flavour, "fencing", proxy.url)
    await warm(locks, name)
    lock = locks(name, timeout=1)
    proxy.hold()
    acquiring = asyncio.ensure_future(lock.acquire(blocking=False))
    await happened(proxy.held)
    if late == "request":  # then Redis has begun to count later than we
        redis_client.pexpire(name, 60_000)
    await asyncio.sleep(1)
    proxy.release()
    assert await acquiring is False
    assert lock.token() is None
    assert not redis_client.exists(name)


async def test_a_server_that_has_forgotten_the_scripts(
    locks: Locks, name: str, redis_client: redis.Redis
) -> None:
    lock = locks(name, timeout=30)
    for call in (lock.acquire, lock.reacquire, lock.release):
        redis_client.script_flush()
        await call()
    assert redis_client.get(name) is None


class TestCancellation:
    @pytest.fixture
    def lock(self, locks_at: Any, redis_url: str, name: str) -> AsyncFencedLock:
        return locks_at("async", "fencing", redis_url)(name).lock

    async def test_a_cancelled_acquire_leaves_no_lock(
        self, lock: AsyncFencedLock, name: str, redis_client: redis.Redis
    ) -> None:
        orphans = cancelled = 0
        async with asyncio.timeout(100):
            while cancelled < 200:
                if random.random() < 0.1:
                    await lock.redis.connection_pool.disconnect()
                acquiring = asyncio.ensure_future(lock.acquire(blocking=False))
                for _ in range(random.randrange(20)):
                    await asyncio.sleep(0)
                acquiring.cancel()
                try:
                    await acquiring
                except asyncio.CancelledError:
                    cancelled += 1
                    orphans += redis_client.delete(name)
                else:
                    await lock.release()
        assert orphans == 0

    async def test_a_cancelled_acquire_is_given_back_before_it_ends(
        self, locks_at: Any, proxy: TcpProxy, name: str, redis_client: redis.Redis
    ) -> None:
        locks = locks_at("async", "fencing", proxy.url)
        await warm(locks, name)
        proxy.hold()
        acquiring = asyncio.ensure_future(locks(name).acquire())
        await happened(proxy.held)
        assert redis_client.exists(name)
        acquiring.cancel()
        await asyncio.sleep(0)
        acquiring.cancel()  # twice: the second finds it giving back
        proxy.release()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert not redis_client.exists(name)

    @pytest.mark.parametrize("again", [False, True])
    async def test_what_is_given_back_is_so_though_a_connection_is_lost(
        self, locks_at: Any, proxy: TcpProxy, name: str, redis_client: redis.Redis, *, again: bool
    ) -> None:
        locks = locks_at("async", "fencing", proxy.url)
        await warm(locks, name)
        proxy.swallow_reply(containing=b"EVALSHA", silently=True)
        acquiring = asyncio.ensure_future(locks(name).acquire())
        await happened(proxy.swallowed)
        proxy.drop_request(b"EVALSHA")
        acquiring.cancel()
        await happened(proxy.dropped)
        if again:
            acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        assert not redis_client.exists(name)

    async def test_a_cancelled_release_has_released(
        self, locks_at: Any, proxy: TcpProxy, name: str, redis_client: redis.Redis
    ) -> None:
        locks = locks_at("async", "fencing", proxy.url)
        lock = locks(name, timeout=30)
        await lock.acquire()
        lease = lock.lease
        proxy.withhold_request(b"EVALSHA")
        releasing = asyncio.ensure_future(lock.release())
        await happened(proxy.withheld)
        releasing.cancel()
        with pytest.raises((asyncio.CancelledError, *ERRORS)):
            await releasing
        proxy.drop_withheld()
        assert not redis_client.exists(name)
        assert lease.released

    async def test_a_cancelled_wait_ends_and_leaves_the_holder_his_lock(
        self, locks: Locks, locks_at: Any, redis_url: str, name: str
    ) -> None:
        holder = locks(name, timeout=600)
        await holder.acquire()
        for steps_ in range(60):
            # A new connection, too, for there redis-py loses some cancellations.
            waiter = locks_at("async", "fencing", redis_url)(name, sleep=0.01)
            waiting = asyncio.ensure_future(waiter.acquire())
            for _ in range(steps_):
                await asyncio.sleep(0)
            waiting.cancel()
            assert (await asyncio.wait({waiting}, timeout=60))[0]
            assert waiting.cancelled()
        assert await holder.owned()
        await holder.release()

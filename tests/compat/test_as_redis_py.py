"""What redis-py documents of its lock holds for ours, and for its own: the same tests for both."""

from __future__ import annotations

import asyncio
import inspect
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError

if TYPE_CHECKING:
    from tests.compat.kinds import Locks

SETTINGS = [
    {},
    {"protocol": 3, "decode_responses": True},
    {"protocol": 2, "decode_responses": True, "encoding": "latin-1"},
]


@pytest.fixture(params=["redis-py", "fencing"])
def whose(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=SETTINGS, ids=["defaults", "resp3", "latin-1"])
def locks(
    request: pytest.FixtureRequest, locks_at: Any, flavour: str, whose: str, redis_url: str
) -> Locks:
    return locks_at(flavour, whose, redis_url, **request.param)


class TestAcquire:
    async def test_the_key_holds_the_token_until_it_is_released(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        lock = locks(name)
        assert await lock.acquire(blocking=False) is True
        assert redis_client.get(name) == lock.token()
        assert len(lock.token()) == 32
        assert redis_client.ttl(name) == -1
        assert await lock.release() is None
        assert redis_client.get(name) is None
        assert lock.token() is None

    @pytest.mark.parametrize("token", ["mine", b"mine"])
    async def test_with_a_token_of_the_callers(
        self, locks: Locks, name: str, redis_client: redis.Redis, token: str | bytes
    ) -> None:
        lock = locks(name, thread_local=False)
        assert await lock.acquire(token=token)
        assert redis_client.get(name) == lock.token() == b"mine"
        await lock.release()
        assert redis_client.get(name) is None

    async def test_one_token_of_two_callers_is_no_way_in(self, locks: Locks, name: str) -> None:
        one, other = locks(name, timeout=30), locks(name, timeout=30)
        assert await one.acquire(token="same", blocking=False)
        assert not await other.acquire(token="same", blocking=False)
        assert not await one.acquire(token="same", blocking=False)
        await one.release()

    @pytest.mark.parametrize("timeout", [10, 9.5])
    async def test_timeout_is_in_seconds(
        self, locks: Locks, name: str, redis_client: redis.Redis, timeout: float
    ) -> None:
        lock = locks(name, timeout=timeout)
        assert await lock.acquire()
        assert 5000 < redis_client.pttl(name) <= timeout * 1000
        await lock.release()

    async def test_a_timeout_of_no_millisecond_is_refused_by_redis(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        with pytest.raises(redis.ResponseError, match="invalid expire time"):
            await locks(name, timeout=0.0001).acquire(blocking=False)
        assert redis_client.get(name) is None

    async def test_one_at_a_time(self, locks: Locks, name: str) -> None:
        one, other = locks(name), locks(name)
        assert await one.acquire(blocking=False)
        assert await other.acquire(blocking=False) is False
        assert await other.acquire(blocking_timeout=0.05) is False
        assert other.token() is None
        await one.release()
        assert await other.acquire(blocking=False)
        assert not await one.acquire(blocking=False)
        await other.release()

    async def test_it_is_not_reentrant(self, locks: Locks, name: str) -> None:
        lock = locks(name)
        assert await lock.acquire()
        token = lock.token()
        assert not await lock.acquire(blocking=False)
        assert lock.token() == token
        await lock.release()

    async def test_constructed_not_to_block(self, locks: Locks, name: str) -> None:
        assert await locks(name).acquire()
        assert not await locks(name, blocking=False).acquire()
        assert not await locks(name, blocking_timeout=0.05, sleep=0.01).acquire()

    async def test_a_sleep_that_would_outlast_the_patience_is_not_begun(
        self, locks: Locks, name: str
    ) -> None:
        assert await locks(name).acquire()
        lock = locks(name, sleep=600, blocking_timeout=1)
        assert not await asyncio.wait_for(lock.acquire(), 60)

    async def test_waiting_for_a_release(self, locks: Locks, name: str) -> None:
        holder, waiter = locks(name), locks(name, sleep=0.01)
        assert await holder.acquire()
        waiting = asyncio.ensure_future(waiter.acquire())
        assert not (await asyncio.wait({waiting}, timeout=0.05))[0]
        await holder.release()
        assert await asyncio.wait_for(waiting, 60)
        assert await waiter.owned()
        await waiter.release()

    async def test_waiting_for_the_end_of_a_timeout(self, locks: Locks, name: str) -> None:
        assert await locks(name, timeout=0.1).acquire()
        assert await asyncio.wait_for(locks(name, sleep=0.01).acquire(), 60)

    @pytest.mark.parametrize("kind", [str, str.encode, lambda name: memoryview(name.encode())])
    async def test_names_of_every_type(
        self, locks: Locks, name: str, kind: Any, redis_client: redis.Redis
    ) -> None:
        lock = locks(kind(name), timeout=10)
        assert await lock.acquire()
        assert redis_client.get(name) == lock.token()
        assert await lock.owned()
        assert await lock.extend(5)
        await lock.release()
        assert not await lock.locked()

    async def test_a_key_of_another_type_is_a_lock_that_is_held(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        redis_client.rpush(name, "not a lock")
        assert not await locks(name).acquire(blocking=False)


class TestLooking:
    async def test_locked_by_anyone_owned_by_me(self, locks: Locks, name: str) -> None:
        one, other = locks(name), locks(name)
        assert (await one.locked(), await one.owned()) == (False, False)
        await one.acquire()
        assert (await one.locked(), await one.owned()) == (True, True)
        assert (await other.locked(), await other.owned()) == (True, False)
        await one.release()
        assert (await one.locked(), await one.owned()) == (False, False)


class TestRelease:
    async def test_of_what_was_not_acquired(self, locks: Locks, name: str) -> None:
        with pytest.raises(LockError) as caught:
            await locks(name).release()
        assert not isinstance(caught.value, LockNotOwnedError)

    async def test_of_what_is_not_owned_any_more(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        lock = locks(name)
        await lock.acquire()
        redis_client.set(name, "another's")
        with pytest.raises(LockNotOwnedError):
            await lock.release()
        assert redis_client.get(name) == b"another's"
        assert lock.token() is None  # the error has ended it
        with pytest.raises(LockError):
            await lock.release()

    async def test_of_what_somebody_has_deleted(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        lock = locks(name, timeout=30)
        await lock.acquire()
        redis_client.delete(name)
        with pytest.raises(LockNotOwnedError):
            await lock.release()

    async def test_by_another_object_that_knows_the_token(self, locks: Locks, name: str) -> None:
        giver, taker = locks(name, timeout=30), locks(name, timeout=30)
        await giver.acquire()
        taker.set_token(giver.token())
        assert await taker.owned()
        assert await taker.extend(10)
        assert await taker.reacquire()
        await taker.release()
        assert not await giver.locked()
        with pytest.raises(LockNotOwnedError):
            await giver.release()


class TestExtend:
    @pytest.mark.parametrize(
        ("how", "least", "most"),
        [
            ({}, 30_500, 40_500),
            ({"replace_ttl": False}, 30_500, 40_500),
            ({"replace_ttl": True}, 15_500, 20_500),
        ],
    )
    async def test_by_seconds(
        self,
        locks: Locks,
        name: str,
        redis_client: redis.Redis,
        how: dict[str, Any],
        least: int,
        most: int,
    ) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        assert await lock.extend(20.5, **how) is True
        assert least < redis_client.pttl(name) <= most
        await lock.release()

    async def test_reacquire_starts_the_timeout_anew(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        lock = locks(name, timeout=30)
        await lock.acquire()
        redis_client.pexpire(name, 10_000)
        assert await lock.reacquire() is True
        assert 20_000 < redis_client.pttl(name) <= 30_000
        await lock.release()

    @pytest.mark.parametrize(("method", "arguments"), [("extend", (10,)), ("reacquire", ())])
    async def test_errors(
        self,
        locks: Locks,
        name: str,
        redis_client: redis.Redis,
        method: str,
        arguments: tuple[int, ...],
    ) -> None:
        lock = locks(name, timeout=30)
        with pytest.raises(LockError, match="unlocked lock"):
            await getattr(lock, method)(*arguments)
        await lock.acquire()
        redis_client.set(name, "another's")
        with pytest.raises(LockNotOwnedError):
            await getattr(lock, method)(*arguments)
        redis_client.delete(name)
        endless = locks(name)
        await endless.acquire()
        with pytest.raises(LockError, match="no timeout"):
            await getattr(endless, method)(*arguments)

    async def test_a_lock_that_has_lost_its_expiry_cannot_be_added_to(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        lock = locks(name, timeout=30)
        await lock.acquire()
        redis_client.persist(name)
        with pytest.raises(LockNotOwnedError):
            await lock.extend(10)


class TestBlock:
    async def test_it_holds_the_lock(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        async with locks(name, blocking_timeout=30) as lock:
            assert redis_client.get(name) == lock.token()
        assert redis_client.get(name) is None

    async def test_it_is_not_entered_without(self, locks: Locks, name: str) -> None:
        await locks(name).acquire()
        with pytest.raises(LockError, match="Unable to acquire lock"):
            await locks(name, blocking=False).__aenter__()

    async def test_a_loss_is_raised_at_its_end(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        async def lose() -> None:
            async with locks(name, timeout=30):
                redis_client.set(name, "another's")

        with pytest.raises(LockNotOwnedError):
            await lose()

    async def test_it_may_be_released_inside(self, locks: Locks, name: str) -> None:
        async def release() -> None:
            async with locks(name) as lock:
                await lock.release()

        with pytest.raises(LockError):
            await release()

    @pytest.mark.skipif(
        "raise_on_release_error" not in inspect.signature(redis.Redis.lock).parameters,
        reason="this redis-py cannot be told not to raise",
    )
    async def test_unless_that_is_only_to_be_logged(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        async with locks(name, timeout=30, raise_on_release_error=False):
            redis_client.delete(name)
        async with locks(name, timeout=30, raise_on_release_error=False) as lock:
            await lock.release()


class TestThreads:
    async def test_a_lock_for_all_threads_is_released_by_any(self, locks: Locks, name: str) -> None:
        lock = locks(name, thread_local=False)
        await lock.acquire()
        if locks.flavour == "sync":
            await asyncio.to_thread(lock.lock.release)
        else:
            await lock.release()
        assert lock.token() is None
        assert not await lock.locked()

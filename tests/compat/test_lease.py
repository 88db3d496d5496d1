"""``lock.lease``: what a guard needs, as true as Redis's own clock."""

from __future__ import annotations

import asyncio
import inspect
import math
import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest
import redis
from redis.exceptions import LockError, LockNotOwnedError

from fencing.clock import now
from fencing.compat.redis import AsyncFencedLock, FencedLock
from fencing.errors import (
    FencingUsageError,
    LeaseExpiredError,
    LeaseLostError,
    LockServiceError,
)
from fencing.lease import AsyncLease, Lease
from fencing.request import MAX_TOKEN, MAX_TTL
from tests.compat.kinds import retries

if TYPE_CHECKING:
    from fencing.embedded.proxy import TcpProxy
    from tests.compat.kinds import Locks


def trusts_no_longer_than_redis(lease: Any, client: redis.Redis, name: str) -> bool:
    left = client.pttl(name)  # asked first: on a busy machine time passes on the way
    return lease.remaining * 1000 <= left + 1


async def test_it_says_what_was_granted(locks: Locks, name: str, redis_client: redis.Redis) -> None:
    lock = locks(name, timeout=20)
    asked_at = now()
    assert await lock.acquire()
    lease = lock.lease
    kind = Lease if locks.flavour == "sync" else AsyncLease
    assert isinstance(getattr(lease, "lease", lease), kind)
    assert (lease.resource, lease.token, lease.ttl) == (name, 1, 20)
    assert re.fullmatch("[0-9a-f]{32}", lease.holder)
    assert lease.owner
    assert not lease.lost
    assert asked_at + 19 < lease.trusted_until
    assert trusts_no_longer_than_redis(lease, redis_client, name)
    assert lock.lease.trusted_until == lease.trusted_until  # one lease, not one each time


async def test_every_acquisition_has_a_greater_token_and_a_new_holder(
    locks: Locks, locks_at: Any, flavour: str, redis_url: str, name: str, redis_client: redis.Redis
) -> None:
    lock, other = locks(name, timeout=20), locks(name, timeout=20)
    plain = locks_at(flavour, "redis-py", redis_url)(name, timeout=20)
    seen = []
    for each in (lock, other, lock):
        await each.acquire()
        seen.append((each.lease.token, each.lease.holder))
        await each.release()
    await plain.acquire()  # issues none
    await plain.release()
    await other.acquire()
    seen.append((other.lease.token, other.lease.holder))
    redis_client.delete(name)  # as if it had expired
    await lock.acquire()
    seen.append((lock.lease.token, lock.lease.holder))
    assert [token for token, _ in seen] == [1, 2, 3, 4, 5]
    assert len({holder for _, holder in seen}) == 5


async def test_it_is_over_with_the_lock(locks: Locks, name: str) -> None:
    lock = locks(name, timeout=20)
    await lock.acquire()
    lease = lock.lease
    await lock.release()
    assert lease.released
    assert not lease.lost
    with pytest.raises(LockError, match="unlocked"):
        _ = lock.lease


@pytest.mark.parametrize("noticed_by", ["release", "reacquire", "extend"])
async def test_a_loss_is_noted(
    locks: Locks, name: str, redis_client: redis.Redis, noticed_by: str
) -> None:
    lock = locks(name, timeout=20)
    await lock.acquire()
    lease = lock.lease
    redis_client.set(name, "another's")
    with pytest.raises(LockNotOwnedError):
        await getattr(lock, noticed_by)(*[10] * (noticed_by == "extend"))
    assert lease.lost
    assert lease.remaining == 0


async def test_another_acquisition_with_the_same_token_is_a_loss(
    locks: Locks, name: str, redis_client: redis.Redis
) -> None:
    one, other = locks(name, timeout=20), locks(name, timeout=20)
    await one.acquire(token="same")
    redis_client.delete(name)
    await other.acquire(token="same")
    with pytest.raises(LockNotOwnedError):
        await one.reacquire()
    with pytest.raises(LockNotOwnedError):
        await one.release()
    assert await other.owned()


class TestTrust:
    @pytest.mark.parametrize(
        ("change", "least", "most"),
        [
            (lambda lock: lock.extend(300), 400, 550),
            (lambda lock: lock.extend(50, replace_ttl=True), 10, 50),
            (lambda lock: lock.extend(-150), 10, 100),
            (lambda lock: lock.reacquire(), 250, 300),
            (lambda lock: lock.lease.renew(400), 300, 400),
            (lambda lock: lock.lease.renew(5), 100, 250),  # a renewal shortens nothing
        ],
        ids=["add", "replace", "take away", "reacquire", "renew", "renew to less"],
    )
    async def test_it_follows_the_lock(
        self, locks: Locks, name: str, redis_client: redis.Redis, change: Any, least: int, most: int
    ) -> None:
        lock = locks(name, timeout=300)
        await lock.acquire()
        redis_client.pexpire(name, 250_000)
        await change(lock)
        assert least < lock.lease.remaining <= most
        assert trusts_no_longer_than_redis(lock.lease, redis_client, name)
        await lock.release()

    async def test_what_may_shorten_the_lock_shortens_it_at_once(
        self, locks_at: Any, flavour: str, proxy: TcpProxy, name: str
    ) -> None:
        locks = locks_at(flavour, "fencing", proxy.url)
        lock = locks(name, timeout=500)
        await lock.acquire()
        lease = lock.lease
        proxy.hold()
        extending = asyncio.ensure_future(lock.extend(100, replace_ttl=True))
        assert await asyncio.to_thread(proxy.held.wait, 20)
        assert lease.remaining < 100
        proxy.release()
        assert await extending

    async def test_a_lease_lasts_a_day_at_most(self, locks: Locks, name: str) -> None:
        lock = locks(name, timeout=7 * MAX_TTL)
        await lock.acquire()
        assert lock.lease.ttl == MAX_TTL
        await lock.reacquire()
        assert lock.lease.ttl == MAX_TTL
        await lock.release()


class TestByTheLease:
    async def test_it_is_released(self, locks: Locks, name: str) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        lease = lock.lease
        await lease.release()
        assert not await lock.locked()
        assert lease.released
        await lease.release()
        if locks.flavour == "async":
            assert lock.token() is None
        else:  # released in another thread, which the lock's own cannot see
            await lock.release()

    async def test_its_block_releases_it(self, locks: Locks, name: str) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        async with lock.lease:
            assert await lock.owned()
        assert not await lock.locked()

    async def test_it_is_asked_for(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        lease = lock.lease
        assert await lease.owned()
        assert await lease.locked()
        redis_client.persist(name)
        state = lease.service.inspect(name)
        state = await state if inspect.isawaitable(state) else state
        assert (state.token, state.holder, state.counter) == (1, lease.holder, 1)
        assert state.remaining == math.inf
        redis_client.set(name, "another's")
        assert await lease.locked()
        assert not await lease.owned()
        assert lease.lost
        redis_client.delete(name)
        assert not await lease.locked()

    @pytest.mark.parametrize("call", ["renew", "release"])
    async def test_a_loss_is_its_own_error(
        self, locks: Locks, name: str, redis_client: redis.Redis, call: str
    ) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        redis_client.set(name, "another's")
        lease = lock.lease
        with pytest.raises(LeaseLostError, match="acquire it again") as caught:
            await getattr(lease, call)()
        assert lease.lost
        assert (caught.value.resource, caught.value.token) == (name, 1)
        pickle.loads(pickle.dumps(caught.value))

    async def test_an_outage_is_its_own_error_and_loses_nothing(
        self, locks_at: Any, flavour: str, proxy: TcpProxy, name: str
    ) -> None:
        lock = locks_at(flavour, "fencing", proxy.url, **retries(flavour, 0))(name, timeout=60)
        await lock.acquire()
        lease = lock.lease
        proxy.refuse()
        with pytest.raises(LockServiceError, match="cannot be reached"):
            await lease.renew()
        assert not lease.lost
        proxy.accept()
        await lease.renew()
        await lease.release()

    async def test_a_renewal_that_is_answered_too_late_is_none(
        self, locks_at: Any, flavour: str, proxy: TcpProxy, name: str
    ) -> None:
        lock = locks_at(flavour, "fencing", proxy.url)(name, timeout=1)
        await lock.acquire()
        lease = lock.lease
        proxy.hold()
        renewing = asyncio.ensure_future(lease.renew())
        assert await asyncio.to_thread(proxy.held.wait, 20)
        await asyncio.sleep(1)
        proxy.release()
        with pytest.raises(LeaseExpiredError):
            await renewing


class TestWithout:
    @pytest.mark.parametrize("timeout", [None, 0])
    async def test_a_lock_without_a_timeout_has_none(
        self, locks: Locks, name: str, timeout: float | None
    ) -> None:
        lock = locks(name, timeout=timeout)
        assert await lock.acquire()
        with pytest.raises(LockError, match="without a timeout") as caught:
            _ = lock.lease
        assert caught.value.lock_name == name
        await lock.release()

    async def test_a_lock_of_another_object_has_none(self, locks: Locks, name: str) -> None:
        one, other = locks(name, timeout=20), locks(name, timeout=20)
        await one.acquire()
        other.set_token(one.token())
        with pytest.raises(LockError, match="not acquired by this object"):
            _ = other.lease
        await one.release()
        await one.acquire()
        held = one.token()
        one.set_token(b"another's")  # who knows better than the object itself
        with pytest.raises(LockError, match="not acquired by this object"):
            _ = one.lease
        with pytest.raises(LockNotOwnedError):
            await one.release()
        one.set_token(held)
        await one.release()

    @pytest.mark.parametrize(("suffix", "why"), [(b"\xff", "utf-8"), (b"x" * 512, "512 bytes")])
    async def test_a_name_that_is_no_resource_has_none(
        self, locks: Locks, name: str, suffix: bytes, why: str
    ) -> None:
        lock = locks(name.encode() + suffix, timeout=20)
        assert await lock.acquire()
        with pytest.raises(LockError, match=why):
            _ = lock.lease
        assert await lock.extend(10)
        await lock.release()

    @pytest.mark.parametrize("kind", [FencedLock, AsyncFencedLock])
    def test_nor_has_another_thread(self, kind: Any, name: str) -> None:
        module: Any = redis if kind is FencedLock else redis.asyncio
        lock = kind(module.Redis(), name, timeout=20)

        def look() -> str:
            with pytest.raises(LockError) as caught:
                _ = lock.lease
            return str(caught.value.message)

        assert asyncio.run(asyncio.to_thread(look)) == "An unlocked lock has no lease"


class TestResource:
    async def test_bytes_name_it_as_well(self, locks: Locks, name: str) -> None:
        lock = locks(f"{name}:é".encode(), timeout=20)
        await lock.acquire()
        assert lock.lease.resource == f"{name}:é"

    async def test_it_may_be_another_than_the_name(self, locks: Locks, name: str) -> None:
        class Prefixed(locks.lock_class):
            @property
            def resource(self) -> str:
                return super().resource.replace(name, "account:42")

        lock = locks(name, timeout=20, lock_class=Prefixed)
        await lock.acquire()
        assert lock.lease.resource == "account:42"

    async def test_one_that_cannot_be_told_takes_no_lock(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        class Wrong(locks.lock_class):
            resource = 42

        with pytest.raises(TypeError, match="a resource must be a str"):
            await locks(name, timeout=20, lock_class=Wrong).acquire()
        assert redis_client.get(name) is None


class TestRaise:
    async def test_it_gives_the_lease_a_greater_token(self, locks: Locks, name: str) -> None:
        lock, other = locks(name, timeout=20), locks(name, timeout=20)
        await lock.acquire()
        await lock.raise_token(41)
        assert lock.lease.token == 42
        await lock.raise_token(30)  # it is greater already
        assert lock.lease.token == 42
        await lock.release()
        await other.acquire()
        assert other.lease.token == 43

    async def test_an_admitted_one_keeps_its_token(
        self, locks: Locks, name: str, fence_key: str, redis_client: redis.Redis
    ) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        lock.lease.note_admitted()
        with pytest.raises(FencingUsageError):
            await lock.raise_token(41)
        assert lock.lease.token == 1
        assert redis_client.hget(fence_key, "token") == b"1"

    async def test_of_a_lock_that_is_lost(
        self, locks: Locks, name: str, redis_client: redis.Redis
    ) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        redis_client.delete(name)
        with pytest.raises(LockNotOwnedError):
            await lock.raise_token(41)
        assert lock.lease.lost

    @pytest.mark.parametrize("written", [str(MAX_TOKEN + 1), "9" * 5000])
    async def test_a_counter_that_somebody_else_has_set_too_high(
        self, locks: Locks, name: str, fence_key: str, redis_client: redis.Redis, written: str
    ) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        redis_client.hset(fence_key, "token", written)
        with pytest.raises(LockError, match=r"2\*\*53|no answer to what was asked"):
            await lock.raise_token(41)
        assert lock.lease.token == 1
        state = lock.lease.service.inspect(name)
        state = await state if inspect.isawaitable(state) else state
        assert state.counter is None

    @pytest.mark.parametrize("floor", [-1, MAX_TOKEN, "7"])
    async def test_a_floor_that_is_none(self, locks: Locks, name: str, floor: Any) -> None:
        lock = locks(name, timeout=20)
        await lock.acquire()
        with pytest.raises((ValueError, TypeError), match="floor"):
            await lock.raise_token(floor)


class TestCounter:
    @pytest.mark.parametrize(
        ("stands_at", "why"), [(str(MAX_TOKEN), "could repeat"), ("1e9", "not a number")]
    )
    async def test_one_that_cannot_count_grants_nothing(
        self,
        locks: Locks,
        name: str,
        fence_key: str,
        redis_client: redis.Redis,
        stands_at: str,
        why: str,
    ) -> None:
        redis_client.hset(fence_key, "token", stands_at)
        with pytest.raises(LockError, match=why) as caught:
            await locks(name, timeout=20).acquire()
        assert caught.value.lock_name == name
        assert redis_client.get(name) is None

    async def test_it_counts_by_one_up_to_the_end(
        self, locks: Locks, name: str, fence_key: str, redis_client: redis.Redis
    ) -> None:
        redis_client.hset(fence_key, "token", MAX_TOKEN - 2)
        lock = locks(name, timeout=20)
        await lock.acquire()
        assert lock.lease.token == MAX_TOKEN - 1
        await lock.raise_token(MAX_TOKEN - 1)
        assert lock.lease.token == MAX_TOKEN
        await lock.release()

    async def test_it_does_not_expire(
        self, locks: Locks, name: str, fence_key: str, redis_client: redis.Redis
    ) -> None:
        async with locks(name, timeout=20):
            assert redis_client.ttl(fence_key) == -1

"""How long Redis keeps the counters: for ever, unless only guards use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import AsyncGuard, Guard
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from fencing.postgres import AsyncPsycopgGuard, PsycopgGuard
from tests.contract.facade import ThreadedLocks
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import redis.asyncio

DAY = 86_400.0
FOR_EVER = -1


@pytest.fixture(params=["sync", "async"])
async def make(
    request: pytest.FixtureRequest, redis_url: str, redis_namespace: str
) -> AsyncIterator[Any]:
    """Makes lock services of one kind, all in one namespace."""
    made: list[Any] = []

    def make(*, guarded: bool = False, **options: Any) -> Any:
        kind = RedisLockService if request.param == "sync" else AsyncRedisLockService
        service: Any = kind.from_url(redis_url, namespace=redis_namespace, **options)
        made.append(service)
        if guarded:
            service.note_guarded()
        return ThreadedLocks(service) if request.param == "sync" else service

    yield make
    for service in made:
        if request.param == "sync":
            service.close()
        else:
            await service.aclose()


@pytest.fixture
def kept(redis_client: redis.Redis, redis_namespace: str) -> Callable[[], float]:
    """How long the counter is kept, in days."""

    def kept() -> float:
        left: Any = redis_client.pttl(keys_of(redis_namespace, "r")[1])
        return left if left < 0 else round(left / 1000 / DAY, 3)

    return kept


async def use(locks: Any) -> int:
    async with locks.acquire("r", ttl=10) as lease:
        return lease.token


async def test_a_service_used_alone_keeps_its_counters(make, kept):
    locks = make()
    async with locks.acquire("r", ttl=10) as lease:
        await lease.renew()
        assert kept() == FOR_EVER
    assert kept() == FOR_EVER


async def test_what_a_guard_uses_is_kept_for_30_days(make, kept):
    await use(make(guarded=True))
    assert kept() == 30


async def test_the_time_can_be_chosen(make, kept):
    await use(make(guarded=True, counter_ttl=DAY))
    assert kept() == 1
    await use(make(guarded=True, counter_ttl=2 * DAY))
    assert kept() == 2
    await use(make(guarded=True, counter_ttl=DAY))  # others count on the longer time
    assert kept() == 2


async def test_without_a_time_it_is_kept_for_ever(make, kept):
    await use(make(guarded=True, counter_ttl=None))
    assert kept() == FOR_EVER


async def test_each_use_begins_the_time_anew(make, kept, redis_client, redis_namespace):
    counter = keys_of(redis_namespace, "r")[1]
    locks = make(guarded=True)
    async with locks.acquire("r", ttl=10) as lease:
        redis_client.pexpire(counter, 1_000_000)
        await lease.renew()
        assert kept() == 30
        redis_client.pexpire(counter, 1_000_000)
        await locks.raise_token(lease, floor=lease.token + 5)
        assert 0 < kept() < 1  # the same counter: not one that is kept for ever
    redis_client.pexpire(counter, 1_000_000)
    await use(locks)
    assert kept() == 30


@pytest.mark.parametrize("guarded_first", [True, False])
async def test_a_counter_that_is_used_without_a_guard_as_well_is_kept_for_ever(
    make, kept, guarded_first
):
    guarded, alone = make(guarded=True), make()
    tokens = [await use(guarded)] if guarded_first else []
    tokens.append(await use(alone))
    assert kept() == FOR_EVER
    tokens.append(await use(guarded))
    assert kept() == FOR_EVER
    assert tokens == sorted(set(tokens))


async def test_a_renewal_of_a_service_alone_keeps_it_too(make, kept, redis_client, redis_namespace):
    locks = make()
    async with locks.acquire("r", ttl=10) as lease:
        redis_client.pexpire(keys_of(redis_namespace, "r")[1], 1_000_000)
        await lease.renew()
        assert kept() == FOR_EVER


@pytest.mark.parametrize(
    ("value", "error"),
    [("1", TypeError), (True, TypeError), (DAY - 1, ValueError), (float("inf"), ValueError),
     (float("nan"), ValueError), (-1, ValueError)],
)  # fmt: skip
@pytest.mark.parametrize("kind", [RedisLockService, AsyncRedisLockService])
def test_a_time_that_makes_no_sense_is_refused(kind, value, error):
    with pytest.raises(error, match="counter_ttl"):
        kind.from_url("redis://localhost", counter_ttl=value)


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg"])
def test_a_guard_s_counter_expires_and_is_reseeded(
    kind, fenced_database, redis_url, redis_namespace, redis_client, kept
):
    locks = RedisLockService.from_url(redis_url, namespace=redis_namespace)
    if kind == "sqlalchemy":
        engine = create_engine(fenced_database)
        guard: Any = Guard(locks, engine)
    else:
        guard = PsycopgGuard(locks, plain_url(fenced_database))
    for _ in range(3):
        guard.acquire("r", ttl=10).release()
    assert kept() == 30
    assert redis_client.delete(keys_of(redis_namespace, "r")[1]) == 1  # as when its time is over
    lease = guard.acquire("r", ttl=10)
    assert lease.token > 3
    assert kept() == 30
    lease.release()
    guard.close()
    if kind == "sqlalchemy":
        engine.dispose()


@pytest.mark.parametrize("kind", ["sqlalchemy", "psycopg"])
async def test_an_async_guard_s_counter_expires_and_is_reseeded(
    kind, fenced_database, redis_url, redis_namespace, redis_client, kept
):
    locks = AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace)
    if kind == "sqlalchemy":
        engine = create_async_engine(fenced_database)
        guard: Any = AsyncGuard(locks, engine)
    else:
        guard = AsyncPsycopgGuard(locks, plain_url(fenced_database))
    for _ in range(3):
        await (await guard.acquire("r", ttl=10)).release()
    assert kept() == 30
    assert redis_client.delete(keys_of(redis_namespace, "r")[1]) == 1  # as when its time is over
    lease = await guard.acquire("r", ttl=10)
    assert lease.token > 3
    assert kept() == 30
    await lease.release()
    await guard.aclose()
    if kind == "sqlalchemy":
        await engine.dispose()

"""A task whose lease is lost is cancelled, once, and told why; other cancellations stay theirs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

import pytest

from fencing import AsyncRedisLockService, LeaseExpiredError, LeaseLostError
from fencing.clock import now
from fencing.locks.redis.scripts import keys_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencing import AsyncLease


class Unlike(BaseException):
    """No Exception, as what a failing check of pytest's raises is none."""


@pytest.fixture
async def locks(redis_url: str, redis_namespace: str) -> AsyncIterator[AsyncRedisLockService]:
    async with AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture
def drop(redis_client, redis_namespace):
    return lambda resource: redis_client.delete(keys_of(redis_namespace, resource)[0])


def run_out(lease: AsyncLease) -> None:
    """A short ttl could be over before the block begins, on a busy machine."""
    lease.trusted_until = now()
    lease.watcher.notice(lease)


async def test_the_body_is_cancelled_and_the_block_raises_the_loss(locks):
    async def work():
        async with locks.acquire("r", ttl=60, cancel_on_loss=True) as lease:
            run_out(lease)
            await asyncio.sleep(60)

    with pytest.raises(LeaseExpiredError, match="ran out") as raised:
        await work()
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    task = asyncio.current_task()
    assert task.cancelling() == 0
    await asyncio.sleep(0)  # nothing of the cancellation is left


async def test_it_is_cancelled_when_the_lock_is_found_to_be_anothers(locks, drop):
    async def work():
        async with locks.acquire("r", ttl=3, keepalive=True, cancel_on_loss=True):
            drop("r")
            await asyncio.sleep(60)

    with pytest.raises(LeaseLostError, match="not ours any more"):
        await work()


async def test_a_block_that_ends_in_time_is_not_cancelled(locks):
    async with locks.acquire("r", ttl=1, cancel_on_loss=True):
        pass
    await asyncio.sleep(1.2)


async def test_a_cancellation_from_outside_stays_one(locks):
    entered = asyncio.Event()

    async def work():
        async with locks.acquire("r", cancel_on_loss=True):
            entered.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_from_outside_wins_over_ours(locks):
    entered = asyncio.Event()
    leases = []

    async def work():
        async with locks.acquire("r", ttl=60, cancel_on_loss=True) as lease:
            leases.append(lease)
            run_out(lease)
            entered.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                asyncio.current_task().cancel()  # as another would, while the body cleans up
                await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await entered.wait()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert leases[0].lost


async def test_a_time_out_around_the_block_stays_one(locks):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2), locks.acquire("r", ttl=30, cancel_on_loss=True):
            await asyncio.sleep(60)


async def test_the_bodys_own_exception_wins(locks):
    async def work():
        async with locks.acquire("r", ttl=60, cancel_on_loss=True) as lease:
            run_out(lease)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise ZeroDivisionError from None

    with pytest.raises(ZeroDivisionError):
        await work()
    assert asyncio.current_task().cancelling() == 0


async def test_a_body_that_swallows_the_cancellation_is_told_at_its_end(locks):
    async def work():
        async with locks.acquire("r", ttl=60, cancel_on_loss=True) as lease:
            run_out(lease)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    with pytest.raises(LeaseLostError):
        await work()
    assert asyncio.current_task().cancelling() == 0


async def test_a_lease_that_was_lost_before_its_block_is_not_entered(locks):
    lease = await locks.acquire("r", ttl=0.05, cancel_on_loss=True)
    await lease.wait_lost(20)
    with pytest.raises(LeaseExpiredError):
        async with lease:
            raise AssertionError
    assert asyncio.current_task().cancelling() == 0


async def test_the_innermost_block_of_the_lease_turns_the_cancellation_into_the_loss(locks):
    ended_with = []

    async def work():
        async with locks.acquire("r", ttl=1, cancel_on_loss=True):
            try:
                async with locks.acquire("r", ttl=0.1, reentrant=True):
                    await asyncio.sleep(60)
            except BaseException as error:
                ended_with.append(type(error))
                raise

    with pytest.raises(LeaseLostError):
        await work()
    assert ended_with == [LeaseExpiredError]
    assert asyncio.current_task().cancelling() == 0


async def test_blocks_are_cancelled_before_anybody_is_told_of_losses(locks):
    told = []

    def on_lost(lease):
        told.append(task.cancelling())
        raise Unlike

    async def work():
        first = await locks.acquire("first", ttl=60, on_lost=on_lost)
        async with locks.acquire("r", ttl=60, cancel_on_loss=True) as lease:
            run_out(first)
            run_out(lease)
            await asyncio.sleep(60)

    task = asyncio.current_task()
    with pytest.raises(LeaseExpiredError):
        await work()
    assert told == [1]


def test_what_ends_an_event_loop_ends_it_when_all_are_told(redis_url, redis_namespace):
    told = []

    def on_lost(lease):
        told.append(lease.resource)
        sys.exit(7)

    async def work():
        async with AsyncRedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
            leases = [await locks.acquire(name, ttl=60, on_lost=on_lost) for name in ("a", "b")]
            for lease in leases:
                run_out(lease)
            await asyncio.sleep(60)

    with asyncio.Runner() as runner, pytest.raises(SystemExit, match="7"):
        runner.run(work())
    assert told == ["a", "b"]


async def test_a_coroutine_function_is_awaited(locks):
    told = asyncio.Event()

    async def on_lost(lease):
        await asyncio.sleep(0)
        assert lease.lost
        told.set()

    lease = await locks.acquire("r", ttl=0.1, on_lost=on_lost)
    async with asyncio.timeout(20):
        await told.wait()
    assert lease.lost


@pytest.mark.parametrize("error", [ZeroDivisionError, Unlike])
async def test_what_a_coroutine_function_raises_is_logged(locks, caplog, error):
    async def on_lost(lease):
        raise error

    lease = await locks.acquire("r", ttl=0.1, on_lost=on_lost)
    until = now() + 20
    while "on_lost of the lease on 'r' (token 1) raised" not in caplog.text:
        assert now() < until
        await asyncio.sleep(0.01)
    assert error.__name__ in caplog.text
    assert lease.lost

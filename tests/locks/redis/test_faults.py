"""Outages, cancellations and interruptions, with a real Redis; more is in tests/contract/faults."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.errors import LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.support.processes import ChildProcess
from tests.support.waiting import happened

if TYPE_CHECKING:
    from fencing.embedded import ValkeyProcess
    from fencing.embedded.proxy import TcpProxy
    from tests.support.child import Parent

LookUp = Any  # the fixture `lock_value`: from a resource to what Redis has under its lock


async def clean_up_begins(proxy: TcpProxy, before: int) -> None:
    """Wait for the new connection that takes the place of the one in an unknown state.

    Args:
        proxy: Where it is made.
        before: How many there were before anything had gone wrong.
    """
    async with asyncio.timeout(20):
        while proxy.connections == before:  # noqa: ASYNC110 - the proxy only counts
            await asyncio.sleep(0.001)


class TestLostReplies:
    async def test_of_acquire(self, locks: Any, proxy: TcpProxy, lock_value: LookUp) -> None:
        proxy.swallow_reply(containing=b"EVALSHA")
        lease = await locks.acquire("r", ttl=30)
        assert proxy.swallowed.is_set()
        assert proxy.commands("EVALSHA") == 2
        # The first request has taken the lock, and the second was given the same token.
        assert lease.token == 1
        assert lock_value("r").startswith(f"1:{lease.holder}:")
        await lease.release()
        assert lock_value("r") is None


class TestSilence:
    """Redis takes requests, and answers none. Without a limit of its own a call would hang."""

    @pytest.mark.usefixtures("_patient_clean_up")
    async def test_the_lock_is_free_when_the_answer_was_only_late(
        self, locks: Any, proxy: TcpProxy, lock_value: LookUp
    ) -> None:
        proxy.hold()
        before = proxy.connections
        waiting = asyncio.ensure_future(locks.acquire("r", ttl=60, blocking_timeout=0.3)._begin())
        await happened(proxy.held)
        assert lock_value("r") is not None
        await clean_up_begins(proxy, before)
        proxy.release()
        with pytest.raises(LockServiceError):
            await waiting
        assert lock_value("r") is None


class TestOutages:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_a_server_that_comes_back_empty(
        self, kind: str, own_valkey: ValkeyProcess
    ) -> None:
        if kind == "sync":
            with RedisLockService.from_url(own_valkey.url) as locks:
                for _ in range(3):
                    assert locks.acquire("r", ttl=10).token == 1
                    own_valkey.kill()
                    own_valkey.start()
        else:
            async with AsyncRedisLockService.from_url(own_valkey.url) as locks:
                for _ in range(3):
                    assert (await locks.acquire("r", ttl=10)).token == 1
                    own_valkey.kill()
                    own_valkey.start()

    def test_flushed_and_set_back(self, own_valkey: ValkeyProcess) -> None:
        with (
            RedisLockService.from_url(own_valkey.url) as locks,
            redis.Redis.from_url(own_valkey.url) as client,
        ):
            for _ in range(5):
                locks.acquire("r").release()
            client.flushall()
            with locks.acquire("r") as lease:
                assert lease.token == 1
                locks.raise_token(lease, floor=5)
                assert lease.token == 6
            client.set(keys_of("fencing", "r")[1], 2)
            with locks.acquire("r", floor=6) as lease:
                assert lease.token == 7
            client.set(keys_of("fencing", "r")[1], 0)
            with locks.acquire("r") as lease:
                assert lease.token == 1


class TestCancellation:
    @pytest.fixture
    async def async_locks(self, proxy: TcpProxy, redis_namespace: str) -> Any:
        async with AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks:
            await (await locks.acquire("warm up")).release()
            yield locks

    async def test_at_random_leaves_no_orphans(
        self,
        async_locks: AsyncRedisLockService,
        proxy: TcpProxy,
        redis_client: redis.Redis,
        redis_namespace: str,
    ) -> None:
        proxy.delay(0.002)
        cancelled = 0

        async def hold(resource: str) -> None:
            await (await async_locks.acquire(resource, ttl=60)).release()

        batch = 0
        while cancelled < 200:  # that came in the middle, however loaded the machine is
            batch += 1
            tasks = [asyncio.ensure_future(hold(f"{batch}:{n}")) for n in range(10)]
            for task in random.sample(tasks, len(tasks)):
                await asyncio.sleep(random.uniform(0, 0.001))
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                assert outcome is None or isinstance(outcome, asyncio.CancelledError)
                cancelled += outcome is not None
        assert list(redis_client.scan_iter(f"{redis_namespace}:*:lock")) == []

    @pytest.mark.usefixtures("_patient_clean_up")
    async def test_twice_does_not_stop_the_clean_up(
        self, async_locks: AsyncRedisLockService, proxy: TcpProxy, lock_value: LookUp
    ) -> None:
        proxy.hold()
        before = proxy.connections
        task = asyncio.ensure_future(async_locks.acquire("r", ttl=60)._begin())
        await happened(proxy.held)
        assert lock_value("r") is not None
        task.cancel()
        await clean_up_begins(proxy, before)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        proxy.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lock_value("r") is None

    @pytest.mark.usefixtures("_patient_clean_up")
    async def test_during_the_clean_up_after_trouble_is_passed_on(
        self, async_locks: AsyncRedisLockService, proxy: TcpProxy, lock_value: LookUp
    ) -> None:
        proxy.hold()
        before = proxy.connections
        task = asyncio.ensure_future(
            async_locks.acquire("r", ttl=60, blocking_timeout=0.1)._begin()
        )
        await happened(proxy.held)
        await clean_up_begins(proxy, before)
        task.cancel()
        proxy.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lock_value("r") is None

    async def test_by_a_time_out_of_the_caller(
        self, async_locks: AsyncRedisLockService, lock_value: LookUp
    ) -> None:
        async with async_locks.acquire("r", ttl=60):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await async_locks.acquire("r")
        assert lock_value("r") is None

    @pytest.mark.usefixtures("_patient_clean_up")
    async def test_of_a_release_is_seen_through(
        self, async_locks: AsyncRedisLockService, proxy: TcpProxy, lock_value: LookUp
    ) -> None:
        lease = await async_locks.acquire("r", ttl=60)
        proxy.hold()
        before = proxy.connections
        task = asyncio.ensure_future(lease.release())
        await happened(proxy.held)
        task.cancel()
        await clean_up_begins(proxy, before)
        proxy.release()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lease.released
        assert lock_value("r") is None


def acquire_until_interrupted(parent: Parent, url: str, namespace: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    locks = RedisLockService.from_url(url, namespace=namespace)
    locks.acquire("r").release()  # now connected, and the script is known
    parent.report("ready")
    parent.wait_for("acquire")
    try:
        locks.acquire("r", ttl=60)
    except KeyboardInterrupt:
        parent.report("interrupted")


def test_an_interrupted_acquire_leaves_no_orphan(
    proxy: TcpProxy, redis_namespace: str, lock_value: LookUp
) -> None:
    with ChildProcess(acquire_until_interrupted, proxy.url, redis_namespace) as child:
        child.wait_for("ready")
        proxy.hold()
        child.tell("acquire")
        assert proxy.held.wait(20)
        assert lock_value("r") is not None
        os.kill(child.pid, signal.SIGINT)
        proxy.release()
        child.wait_for("interrupted")
        child.check()
    assert lock_value("r") is None


def inherit(parent: Parent, url: str, namespace: str) -> None:
    locks = RedisLockService.from_url(url, namespace=namespace)
    lease = locks.acquire("r", ttl=60)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            lease.release()
            with locks.acquire("the child's own", ttl=60, blocking=False):
                own = locks.try_acquire("r") is None
            os._exit(0 if lease.lost and own else 1)
        os._exit(2)
    _, status = os.waitpid(pid, 0)
    still_ours = lease.remaining > 0 and locks.try_acquire("r") is None
    lease.renew()
    lease.release()
    parent.report("forked", status=os.waitstatus_to_exitcode(status), still_ours=still_ours)


def test_a_forked_child_owns_nothing_and_can_acquire(redis_url: str, redis_namespace: str) -> None:
    with ChildProcess(inherit, redis_url, redis_namespace) as child:
        assert child.wait_for("forked") == {"event": "forked", "status": 0, "still_ours": True}
        child.check()

"""Several locks in Redis at once: in one script, and what faults leave of them."""

from __future__ import annotations

import asyncio
import queue
import random
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fencing.clock import now
from fencing.embedded.cluster import ValkeyCluster
from fencing.errors import (
    LeaseExpiredError,
    LeaseLostError,
    LockNotAcquiredError,
    LockServiceError,
)
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.support.processes import ChildProcess
from tests.support.waiting import happened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded.proxy import TcpProxy
    from tests.support.child import Parent

LookUp = Any  # the fixture `lock_value`: from a resource to what Redis has under its lock


@pytest.fixture
async def locks(locks: Any, proxy: TcpProxy) -> Any:
    """The fixture of this folder, whose Redis knows the script for several locks."""
    await (await locks.acquire_all(["warm", "up"])).release()
    proxy.reset_counts()
    return locks


class TestOneScript:
    async def test_one_round_trip(self, locks: Any, proxy: TcpProxy) -> None:
        group = await locks.acquire_all([f"r{number}" for number in range(50)], ttl=10)
        assert proxy.commands() == 1
        await group.release()
        assert all(lease.released for lease in group)

    async def test_when_one_is_held_nothing_is_taken(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        async with locks.acquire("b", ttl=60, owner="the holder"):
            with pytest.raises(LockNotAcquiredError, match=r"'b' .* the holder \(token 1\)"):
                await locks.acquire_all(["c", "b", "a"], ttl=10, blocking=False)
            for name in "ac":
                for key in keys_of(redis_namespace, name):
                    assert not redis_client.exists(key)

    async def test_a_lock_without_expiry_is_told_by_its_name(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str, lock_value: LookUp
    ) -> None:
        redis_client.set(keys_of(redis_namespace, "b")[0], "somebody")
        with pytest.raises(LockServiceError, match="delete it") as caught:
            await locks.acquire_all(["a", "b"], ttl=10, blocking=False)
        assert caught.value.resource == "b"
        assert lock_value("a") is None

    @pytest.mark.parametrize("counter", ["many", "9007199254740991"])
    async def test_a_counter_that_cannot_count_gives_everything_back(
        self,
        locks: Any,
        redis_client: redis.Redis,
        redis_namespace: str,
        lock_value: LookUp,
        counter: str,
    ) -> None:
        redis_client.set(keys_of(redis_namespace, "b")[1], counter)
        with pytest.raises(LockServiceError, match="the counter") as caught:
            await locks.acquire_all(["a", "b", "c"], ttl=60)
        assert caught.value.resource == "b"
        assert [lock_value(name) for name in "abc"] == [None, None, None]

    async def test_a_counter_of_another_type_gives_everything_back(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str, lock_value: LookUp
    ) -> None:
        redis_client.hset(keys_of(redis_namespace, "b")[1], "a", "b")
        with pytest.raises(LockServiceError, match="WRONGTYPE") as caught:
            await locks.acquire_all(["a", "b", "c"], ttl=60)
        assert "'a', 'b', 'c'" in str(caught.value)
        assert [lock_value(name) for name in "abc"] == [None, None, None]

    async def test_who_waits_already_comes_first(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str, lock_value: LookUp
    ) -> None:
        # A waiter of another process whose turn it is, since the last lease has expired.
        record = f"{'a' * 32}:60000:0:{'b' * 32}:the waiter"
        with redis_client.pubsub() as listener:
            listener.subscribe(f"{redis_namespace}:wake:{'b' * 32}")
            assert listener.get_message(timeout=10)
            redis_client.zadd(keys_of(redis_namespace, "b")[2], {record: 1})
            with pytest.raises(LockNotAcquiredError, match="the waiter") as caught:
                await locks.acquire_all(["a", "b"], ttl=60, blocking=False)
            assert listener.get_message(timeout=10)
        assert caught.value.resource == "b"
        assert lock_value("a") is None


class TestFaults:
    async def test_a_lost_reply_is_no_loss(
        self, locks: Any, proxy: TcpProxy, lock_value: LookUp
    ) -> None:
        proxy.swallow_reply(containing=b"EVALSHA")
        group = await locks.acquire_all(["a", "b"], ttl=30)
        assert proxy.swallowed.is_set()
        # The first request has taken the locks, and the second was given the same tokens.
        assert [lease.token for lease in group] == [1, 1]
        for lease in group:
            assert lock_value(lease.resource).startswith(f"1:{lease.holder}:")
        await group.release()
        assert [lock_value(name) for name in "ab"] == [None, None]

    async def test_a_lost_reply_with_another_s_lock_in_between_keeps_nothing(
        self,
        locks: Any,
        proxy: TcpProxy,
        lock_value: LookUp,
        redis_client: redis.Redis,
        redis_namespace: str,
    ) -> None:
        proxy.hold()
        asking = asyncio.ensure_future(locks.acquire_all(["a", "b"], blocking=False)._begin())
        await happened(proxy.held)
        assert lock_value("a") is not None
        redis_client.set(keys_of(redis_namespace, "b")[0], "7:abcd:the thief", px=60_000)
        proxy.cut()  # it asks once more, on a new connection
        proxy.release()
        with pytest.raises(LockNotAcquiredError, match="the thief"):
            await asking
        assert lock_value("a") is None
        assert lock_value("b") == "7:abcd:the thief"

    @pytest.mark.usefixtures("_patient_clean_up")
    async def test_silence_ends_and_leaves_nothing(
        self, locks: Any, proxy: TcpProxy, lock_value: LookUp
    ) -> None:
        proxy.hold()
        before = proxy.connections
        asking = asyncio.ensure_future(
            locks.acquire_all(["a", "b"], ttl=60, blocking_timeout=0.3)._begin()
        )
        await happened(proxy.held)
        assert lock_value("b") is not None
        while proxy.connections == before:  # noqa: ASYNC110 - the proxy only counts
            await asyncio.sleep(0.001)
        proxy.release()
        with pytest.raises(LockServiceError, match="resources 'a', 'b'"):
            await asking
        assert [lock_value(name) for name in "ab"] == [None, None]

    async def test_an_answer_that_comes_after_the_ttl_is_not_believed(
        self, locks: Any, proxy: TcpProxy, lock_value: LookUp
    ) -> None:
        proxy.delay(0.15)
        with pytest.raises(LockServiceError, match="longer ttl"):
            await locks.acquire_all(["a", "b"], ttl=0.1, blocking=False)
        proxy.delay(0)
        assert [lock_value(name) for name in "ab"] == [None, None]

    async def test_nobody_there(self, locks: Any, proxy: TcpProxy) -> None:
        proxy.refuse()
        with pytest.raises(LockServiceError, match="'c' and 2 more: Redis cannot be reached"):
            await locks.acquire_all(["b", "a", "e", "c", "d"], blocking=False)

    async def test_scripts_are_sent_again(self, locks: Any, redis_client: redis.Redis) -> None:
        for _ in range(2):
            redis_client.script_flush()
            await (await locks.acquire_all(["a", "b"], ttl=10)).release()

    @pytest.mark.parametrize("how", ["block", "release"])
    async def test_all_are_given_back_in_one_message(
        self, locks: Any, redis_client: redis.Redis, lock_value: LookUp, how: str
    ) -> None:
        group = await locks.acquire_all(["a", "b", "c"], ttl=60)
        reads = redis_client.info("stats")["total_reads_processed"]
        if how == "block":
            async with group:
                pass
        else:
            await group.release()
        # The look at it is another; each by itself would be four.
        assert redis_client.info("stats")["total_reads_processed"] - reads < 4
        assert all(lease.released for lease in group)
        assert [lock_value(name) for name in "abc"] == [None] * 3
        await group.release()  # does nothing

    async def test_all_are_renewed_in_one_message(
        self, locks: Any, redis_client: redis.Redis
    ) -> None:
        group = await locks.acquire_all(["a", "b", "c"], ttl=10)
        reads = redis_client.info("stats")["total_reads_processed"]
        await group.renew(60)
        assert redis_client.info("stats")["total_reads_processed"] - reads < 4
        assert group.remaining > 50
        await group.release()

    async def test_a_renewal_whose_answer_is_lost_is_tried_again(
        self, locks: Any, proxy: TcpProxy
    ) -> None:
        async with locks.acquire_all(["a", "b", "c"], ttl=10) as group:
            proxy.swallow_reply(containing=b"EVALSHA")
            await group.renew(60)
            assert proxy.swallowed.is_set()
            assert group.remaining > 50

    async def test_a_renewal_of_what_is_lost(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        group = await locks.acquire_all(["a", "b", "c"], ttl=10)
        redis_client.delete(keys_of(redis_namespace, "b")[0])
        with pytest.raises(LeaseLostError) as caught:
            await group.renew(60)
        assert caught.value.resource == "b"
        assert group[2].remaining > 50

    async def test_an_answer_that_is_lost_is_no_loss(
        self, locks: Any, proxy: TcpProxy, lock_value: LookUp
    ) -> None:
        group = await locks.acquire_all(["a", "b", "c"], ttl=60)
        proxy.swallow_reply(containing=b"EVALSHA")
        await group.release()
        assert proxy.swallowed.is_set()
        assert not group.lost
        assert [lock_value(name) for name in "abc"] == [None] * 3

    @pytest.mark.parametrize("in_block", [False, True])
    async def test_those_that_were_lost_are_told_and_the_others_released(
        self,
        locks: Any,
        redis_client: redis.Redis,
        redis_namespace: str,
        lock_value: LookUp,
        *,
        in_block: bool,
    ) -> None:
        group = await locks.acquire_all(["a", "b", "c"], ttl=60)
        redis_client.set(keys_of(redis_namespace, "b")[0], f"9:{'f' * 32}:", px=60_000)

        async def give_back() -> None:
            if in_block:
                async with group:
                    return
            await group.release()

        with pytest.raises(LeaseLostError) as caught:
            await give_back()
        assert caught.value.resource == "b"
        assert [lock_value(name) for name in "ac"] == [None, None]

    async def test_one_release_that_fails_does_not_keep_the_others(
        self, locks: Any, redis_client: redis.Redis, redis_namespace: str, lock_value: LookUp
    ) -> None:
        group = await locks.acquire_all(["a", "b", "c"], ttl=60)
        redis_client.delete(keys_of(redis_namespace, "b")[0])
        redis_client.hset(keys_of(redis_namespace, "b")[0], "a", "b")
        with pytest.raises(LockServiceError, match="WRONGTYPE"):
            await group.release()
        assert [lock_value(name) for name in "ac"] == [None, None]
        assert all(lease.released for lease in group)


class TestOptions:
    @pytest.mark.parametrize("waits", [False, True], ids=["at once", "after waiting"])
    async def test_keepalive_renews_each(self, locks: Any, *, waits: bool) -> None:
        if waits:
            await locks.acquire("a", ttl=0.2)
        async with locks.acquire_all(["a", "b"], ttl=2, keepalive=True) as group:
            assert await group[0].wait_lost(3) is False
            assert [await lease.owned() for lease in group] == [True, True]

    async def test_max_lifetime_ends_each(self, locks: Any) -> None:
        group = await locks.acquire_all(["a", "b"], ttl=0.3, keepalive=True, max_lifetime=0.5)
        assert [await lease.wait_lost(20) for lease in group] == [True, True]

    async def test_on_lost_is_called_once_for_each(self, locks: Any) -> None:
        told: queue.Queue[Any] = queue.Queue()
        group = await locks.acquire_all(["a", "b"], ttl=0.3, on_lost=told.put)
        get = asyncio.get_running_loop().run_in_executor
        lost = [await get(None, lambda: told.get(timeout=20)) for _ in group]
        assert sorted(lease.resource for lease in lost) == ["a", "b"]
        assert told.empty()

    async def test_cancel_on_loss_cancels_the_block_and_is_the_loss(
        self, proxy: TcpProxy, redis_namespace: str, lock_value: LookUp
    ) -> None:
        async with AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks:
            with pytest.raises(LeaseLostError):
                async with locks.acquire_all(["a", "b"], ttl=0.3, cancel_on_loss=True):
                    await asyncio.sleep(20)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
        assert [lock_value(name) for name in "ab"] == [None, None]

    async def test_they_are_released_together_where_their_loss_cancels(
        self, proxy: TcpProxy, redis_namespace: str, lock_value: LookUp
    ) -> None:
        async with AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks:
            group = await locks.acquire_all(["a", "b", "c"], ttl=60, cancel_on_loss=True)

            async def work() -> None:
                async with group:
                    proxy.hold()

            working = asyncio.create_task(work())
            await happened(proxy.held)
            assert [lock_value(name) for name in "abc"] == [None] * 3  # before the first answer
            proxy.release()
            await working

    @pytest.mark.parametrize("lost", [("a",), ("c",), ("a", "c")], ids=str)
    async def test_the_loss_of_some_ends_the_block_and_releases_the_others(
        self, proxy: TcpProxy, redis_namespace: str, lock_value: LookUp, lost: tuple[str, ...]
    ) -> None:
        async def work(group: Any) -> None:
            async with group:
                for lease in group:
                    if lease.resource in lost:
                        lease.trusted_until = now()
                        lease.watcher.notice(lease)
                await asyncio.sleep(20)

        task = asyncio.current_task()
        assert task is not None
        async with AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks:
            group = await locks.acquire_all(["a", "b", "c"], ttl=60, cancel_on_loss=True)
            with pytest.raises(LeaseExpiredError) as raised:
                await work(group)
        assert raised.value.resource in lost
        assert isinstance(raised.value.__cause__, asyncio.CancelledError)
        assert task.cancelling() == 0
        assert lock_value("b") is None


class TestCancellation:
    @pytest.mark.parametrize("contended", [False, True], ids=["free", "contended"])
    async def test_at_random_leaves_no_orphans(
        self, proxy: TcpProxy, redis_client: redis.Redis, redis_namespace: str, *, contended: bool
    ) -> None:
        async with AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks:
            await (await locks.acquire_all(["warm", "up"])).release()
            proxy.delay(0.002)
            cancelled = 0

            async def hold(names: list[str]) -> None:
                async with locks.acquire_all(names, ttl=60):
                    await asyncio.sleep(random.uniform(0, 0.002))

            batch = 0
            while cancelled < 200:  # that came in the middle, however loaded the machine is
                batch += 1
                names = [f"{batch}:{number}" for number in range(3)]
                tasks = [
                    asyncio.ensure_future(
                        hold(random.sample(names, 2) if contended else [f"{n}:{x}" for x in names])
                    )
                    for n in range(10)
                ]
                for task in random.sample(tasks, len(tasks)):
                    await asyncio.sleep(random.uniform(0, 0.002))
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    assert outcome is None or isinstance(outcome, asyncio.CancelledError)
                    cancelled += outcome is not None
        assert list(redis_client.scan_iter(f"{redis_namespace}:*:lock")) == []


def transfer(parent: Parent, url: str, namespace: str, names: list[str], rounds: int) -> None:
    """Acquire all of them, again and again, in an order of its own each time."""
    inside = f"{namespace}:inside:"
    with (
        RedisLockService.from_url(url, namespace=namespace) as locks,
        redis.Redis.from_url(url) as client,
    ):
        parent.report("ready")
        parent.wait_for("begin")
        for _ in range(rounds):
            some = random.sample(names, random.randint(2, len(names)))
            with locks.acquire_all(some, ttl=60, blocking_timeout=100):
                alone = [client.incr(inside + name) == 1 for name in some]
                for name in some:
                    client.decr(inside + name)
            if not all(alone):
                parent.report("not alone")
    parent.report("done")


@pytest.mark.slow
def test_processes_with_opposite_orders_never_wait_for_each_other(
    redis_url: str, redis_namespace: str, redis_client: redis.Redis
) -> None:
    names = ["a", "b", "c"]
    arguments = (redis_url, redis_namespace, names, 20)
    children = [ChildProcess(transfer, *arguments) for _ in range(5)]
    try:
        for child in children:
            child.wait_for("ready")
        for child in children:
            child.tell("begin")
        for child in children:
            child.wait_for("done", timeout=100)
            child.check()
    finally:
        for child in children:
            child.close()
    assert list(redis_client.scan_iter(f"{redis_namespace}:*:lock")) == []


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=3) as cluster:
        yield cluster


class TestCluster:
    NAMES = tuple(f"r{number}" for number in range(12))

    def test_over_all_nodes_one_by_one(self, cluster: ValkeyCluster) -> None:
        with (
            redis.RedisCluster(host="127.0.0.1", port=cluster.port) as client,
            RedisLockService(client, namespace="sync") as locks,
        ):
            with locks.acquire_all(self.NAMES, ttl=60) as group:
                assert len(list(locks.scan())) == len(group) == 12
            with locks.acquire("r5", ttl=60):
                with pytest.raises(LockNotAcquiredError) as caught:
                    locks.acquire_all(self.NAMES, ttl=60, blocking=False)
                assert caught.value.resource == "r5"
                assert [state.resource for state in locks.scan()] == ["r5"]

    async def test_over_all_nodes_one_by_one_async(self, cluster: ValkeyCluster) -> None:
        async with (
            redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port) as client,
            AsyncRedisLockService(client, namespace="async") as locks,
        ):
            async with locks.acquire_all(self.NAMES, ttl=60) as group:
                assert len([state async for state in locks.scan()]) == len(group) == 12
            async with locks.acquire("r5", ttl=60):
                with pytest.raises(LockNotAcquiredError) as caught:
                    await locks.acquire_all(self.NAMES, ttl=60, blocking_timeout=0.2)
                assert caught.value.resource == "r5"
                assert [state.resource async for state in locks.scan()] == ["r5"]

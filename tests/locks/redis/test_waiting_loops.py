"""One asynchronous service in several event loops, one after the other, and in forked children."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio

from fencing.clock import now
from fencing.embedded.cluster import ValkeyCluster
from fencing.keepalive.keepers import keeper_of
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from tests.support.child import Parent

# In processes of their own: what a loop leaves behind that is not closed properly, Python warns of.


async def queued(others: RedisLockService, resource: str, count: int) -> None:
    async with asyncio.timeout(30):
        while others.inspect(resource).waiters != count:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.002)


def use_in_two_loops(parent: Parent, url: str, namespace: str) -> None:
    locks = AsyncRedisLockService.from_url(url, namespace=namespace, max_connections=1)
    use_twice(parent, locks)


def use_a_cluster_in_two_loops(parent: Parent, port: int) -> None:
    use_twice(parent, AsyncRedisLockService(redis.asyncio.RedisCluster("127.0.0.1", port)))


def use_twice(parent: Parent, locks: AsyncRedisLockService) -> None:
    async def use() -> None:
        async with locks.acquire("r", ttl=60):
            pass

    asyncio.run(use())
    asyncio.run(use())
    asyncio.run(locks.aclose())
    parent.report("done")


def wait_in_two_loops(parent: Parent, url: str, namespace: str) -> None:
    locks = AsyncRedisLockService.from_url(url, namespace=namespace)
    others = RedisLockService.from_url(url, namespace=namespace)
    held = others.acquire("r", ttl=60)

    async def leave_one_behind() -> Any:
        waiter = asyncio.ensure_future(locks.acquire("r", ttl=60)._begin())
        await queued(others, "r", 1)
        return waiter

    async def wait() -> None:
        held.release()
        async with locks.acquire("r", ttl=60, blocking_timeout=30):
            parent.report("acquired")
        await locks.aclose()

    loop = asyncio.new_event_loop()
    waiter = loop.run_until_complete(leave_one_behind())
    loop.close()
    asyncio.run(wait())
    parent.report("done", left_behind=not waiter.done())
    others.close()


class Stuck(AsyncRedisLockService):
    """Its renewals are never answered, once `begun` is there to be told of them."""

    begun: asyncio.Event | None = None

    async def renew_many(self, *args: Any, **kwargs: Any) -> Any:
        if self.begun is None:
            return await super().renew_many(*args, **kwargs)
        self.begun.set()
        return await asyncio.Event().wait()


async def renew(lease: Any) -> None:
    """Have it renewed, and wait until it was."""
    end = lease.trusted_until
    keeper_of(lease).confirm(lease)
    async with asyncio.timeout(20):
        while lease.trusted_until == end:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.002)


def close_behind_a_loop_that_was_renewing(parent: Parent, url: str, namespace: str) -> None:
    locks = Stuck.from_url(url, namespace=namespace)

    async def leave_one_behind() -> Any:
        locks.begun = asyncio.Event()
        lease = await locks.acquire("r", ttl=60, keepalive=True)
        keeper_of(lease).confirm(lease)
        await locks.begun.wait()
        locks.begun = None
        return lease

    async def use() -> None:
        lease = await locks.acquire("another", ttl=60, keepalive=True)
        await renew(lease)
        await locks.aclose()
        parent.report("closed", in_use=len(keeper_of(lease)._tasks))
        parent.wait_for("close again")
        await locks.aclose()

    loop = asyncio.new_event_loop()
    left_behind = loop.run_until_complete(leave_one_behind())
    loop.close()
    asyncio.run(use())
    parent.report("done", token=left_behind.token)


def lose_behind_a_loop_that_had_a_block(parent: Parent, url: str, namespace: str) -> None:
    locks = AsyncRedisLockService.from_url(url, namespace=namespace)

    async def leave_one_behind() -> Any:
        entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def work() -> None:
            async with locks.acquire("r", ttl=60, cancel_on_loss=True) as lease:
                entered.set_result(lease)
                await asyncio.Event().wait()

        task = asyncio.ensure_future(work())
        return task, await entered

    async def use() -> None:
        told = asyncio.Event()
        lease = await locks.acquire("other", ttl=60, on_lost=lambda _: told.set())
        for each in (left_behind, lease):  # looked at together
            each.trusted_until = now()
            each.watcher.notice(each)
        async with asyncio.timeout(20):
            await told.wait()
        await locks.aclose()

    loop = asyncio.new_event_loop()
    task, left_behind = loop.run_until_complete(leave_one_behind())
    loop.close()
    asyncio.run(use())
    parent.report("done", left_behind=not task.done(), lost=left_behind.lost)


def wait_in_a_forked_child(parent: Parent, url: str, namespace: str) -> None:
    locks = AsyncRedisLockService.from_url(url, namespace=namespace)
    others = RedisLockService.from_url(url, namespace=namespace)

    async def in_the_child() -> None:
        async with locks.acquire("r", ttl=60, blocking_timeout=20):
            pass
        await locks.aclose()

    async def main() -> int:
        held = others.acquire("r", ttl=60)
        waiter = asyncio.ensure_future(locks.acquire("r", ttl=60)._begin())
        await queued(others, "r", 1)
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                asyncio.events._set_running_loop(None)
                asyncio.run(in_the_child())
                status = 0
            os._exit(status)
        await queued(others, "r", 2)  # the child stands in no line of its parent's
        parent.report("waiting")
        await asyncio.to_thread(parent.wait_for, "release")
        held.release()
        await (await waiter).release()
        status = os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])
        await locks.aclose()
        return status

    parent.report("done", status=asyncio.run(main()))
    others.close()


def test_connections_of_a_closed_loop_are_not_used(redis_url: str, redis_namespace: str) -> None:
    with ChildProcess(use_in_two_loops, redis_url, redis_namespace) as child:
        child.wait_for("done")
        child.check()


def test_nor_those_to_a_cluster() -> None:
    with (
        ValkeyCluster(nodes=1) as cluster,
        ChildProcess(use_a_cluster_in_two_loops, cluster.port) as child,
    ):
        child.wait_for("done")
        child.check()


def test_who_was_left_behind_in_a_closed_loop_stands_in_no_line(
    redis_url: str, redis_namespace: str
) -> None:
    with ChildProcess(wait_in_two_loops, redis_url, redis_namespace) as child:
        child.wait_for("acquired")
        assert child.wait_for("done")["left_behind"]
        child.check()


def test_a_renewal_that_a_closed_loop_was_at_keeps_nobody_from_closing(
    redis_url: str, redis_namespace: str
) -> None:
    with ChildProcess(close_behind_a_loop_that_was_renewing, redis_url, redis_namespace) as child:
        assert child.wait_for("closed")["in_use"] == 0
        child.tell("close again")
        child.wait_for("done")
        child.check()


def test_a_block_in_a_closed_loop_keeps_nobody_from_being_told_of_a_loss(
    redis_url: str, redis_namespace: str
) -> None:
    with ChildProcess(lose_behind_a_loop_that_had_a_block, redis_url, redis_namespace) as child:
        done = child.wait_for("done", timeout=40)
        assert done["left_behind"]
        assert done["lost"]
        child.check()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_waits_for_itself(
    redis_client: redis.Redis, redis_url: str, redis_namespace: str
) -> None:
    with ChildProcess(wait_in_a_forked_child, redis_url, redis_namespace) as child:
        child.wait_for("waiting")
        # A channel of its own: a dead child is not taken to be alive because its parent is.
        assert len(redis_client.pubsub_channels(f"{redis_namespace}:wake:*")) == 2
        child.tell("release")
        assert child.wait_for("done")["status"] == 0
        child.check()
    assert not redis_client.exists(*keys_of(redis_namespace, "r")[::2])

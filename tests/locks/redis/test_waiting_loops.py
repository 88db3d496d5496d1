"""One asynchronous service in several event loops, one after the other, and in forked children."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio

from fencing.embedded.cluster import ValkeyCluster
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

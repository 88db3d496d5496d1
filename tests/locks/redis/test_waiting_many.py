"""Many who wait for a lock on a real server: each has his turn, whoever gives up."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.errors import LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import RELEASE, keys_of
from tests.locks.redis.waiting import Server, begun, in_line, service, until

if TYPE_CHECKING:
    from fencing.embedded.proxy import TcpProxy


class TestMany:
    async def test_waiters_of_a_process_are_served_in_turn_and_one_of_them_asks(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy
    ) -> None:
        held = await others.acquire("r", ttl=60)
        served: list[int] = []

        async def wait(number: int) -> None:
            async with await begun(locks):
                served.append(number)

        tasks = []
        for number in range(20):
            tasks.append(asyncio.ensure_future(wait(number)))
            await until(lambda: in_line(locks) > number)  # noqa: B023 - called at once
        await server.queued()
        assert proxy.commands("EVALSHA", "EVAL") <= 8
        await held.release()
        await asyncio.gather(*tasks)
        assert served == list(range(20))
        assert proxy.connections <= 4
        assert server.leftovers() == []

    async def test_fair_waiters_are_served_in_the_order_of_all_processes(
        self, redis_url: str, others: Any, server: Server
    ) -> None:
        async with contextlib.AsyncExitStack() as stack:
            services = [
                await stack.enter_async_context(service(kind, redis_url, server.namespace))
                for kind in ("sync", "async", "sync")
            ]
            held = await others.acquire("r", ttl=60)
            served: list[int] = []

            async def wait(number: int) -> None:
                async with await begun(services[number % 3], fair=True):
                    served.append(number)

            tasks = []
            for number in range(18):
                tasks.append(asyncio.ensure_future(wait(number)))
                await server.queued(number + 1)
            await held.release()
            await asyncio.gather(*tasks)
        assert served == list(range(18))
        assert server.leftovers() == []

    @pytest.mark.parametrize("spread", [False, True], ids=["one resource", "as many resources"])
    async def test_a_thousand_async_waiters(
        self, redis_url: str, server: Server, *, spread: bool
    ) -> None:
        resources = [f"r{number if spread else 0}" for number in range(1000)]
        holder = AsyncRedisLockService.from_url(
            redis_url, namespace=server.namespace, max_connections=4
        )
        connections = server.connections()
        async with (
            holder,
            AsyncRedisLockService.from_url(
                redis_url, namespace=server.namespace, max_connections=4
            ) as locks,
        ):
            held = [await holder.acquire(resource, ttl=600) for resource in sorted(set(resources))]
            before = server.commands()
            tasks = [begun(locks, resource, ttl=600) for resource in resources]
            await server.all_queued(set(resources))
            if not spread:
                assert server.commands() - before < 20
            assert server.connections() - connections <= 4 + 4 + 1
            before = server.commands()

            async def release(task: asyncio.Task[Any]) -> None:
                await (await task).release()

            # No more at a time than a slow machine can do in two seconds: so long may a release
            # take, and so long a lock is handed over.
            waiters = defaultdict(list)
            for resource, task in zip(resources, tasks, strict=True):
                waiters[resource].append(task)
            for start in range(0, len(held), 20):
                few = held[start : start + 20]
                for lease in few:
                    await lease.release()
                await asyncio.gather(
                    *[release(t) for lease in few for t in waiters[lease.resource]]
                )
            if not spread:  # to register, to take and to release; and one asks once a second
                assert server.commands() - before < 1000 * 8
        assert server.leftovers() == []

    async def test_when_redis_is_gone_all_find_out(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy
    ) -> None:
        await others.acquire("r", ttl=60)
        tasks = [begun(locks) for _ in range(40)]
        await server.queued()
        proxy.refuse()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(outcome) for outcome in outcomes} == {LockServiceError}


class TestGivingUp:
    async def test_cancelled_at_random_nobody_leaves_anything(
        self, proxy: TcpProxy, server: Server
    ) -> None:
        async with AsyncRedisLockService.from_url(proxy.url, namespace=server.namespace) as locks:
            proxy.delay(0.001)
            cancelled = 0

            async def hold(resource: str, *, fair: bool) -> None:
                async with locks.acquire(resource, ttl=60, fair=fair):
                    await asyncio.sleep(0.001)

            while cancelled < 200:
                tasks = [
                    asyncio.ensure_future(hold(f"r{number % 3}", fair=number % 2 == 0))
                    for number in range(12)
                ]
                for task in random.sample(tasks, len(tasks) - 3):
                    await asyncio.sleep(random.uniform(0, 0.004))
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    assert outcome is None or isinstance(outcome, asyncio.CancelledError)
                    cancelled += outcome is not None
            assert server.leftovers() == []

    @pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "second", "last"])
    async def test_whoever_leaves_the_line_the_others_are_served(
        self, server: Server, redis_url: str, others: Any, place: int
    ) -> None:
        async with AsyncRedisLockService.from_url(redis_url, namespace=server.namespace) as locks:
            held = await others.acquire("r", ttl=60)
            tasks = [begun(locks) for _ in range(3)]
            await server.queued()
            tasks[place].cancel()
            await asyncio.wait({tasks.pop(place)})
            await server.queued()
            await held.release()
            for task in tasks:
                await (await task).release()
            assert server.leftovers() == []

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_a_lock_handed_to_one_who_could_not_say_so_goes_on_at_once(
        self, kind: str, redis_url: str, others: Any, server: Server
    ) -> None:
        async with service(kind, redis_url, server.namespace) as locks:
            held = await others.acquire("r", ttl=60)
            performer = (locks.locks if kind == "sync" else locks)._redis
            run = performer._sibling.run

            def fail(script: Any, *arguments: Any) -> Any:
                if script is RELEASE:
                    raise redis.ConnectionError
                return run(script, *arguments)

            async def fail_async(script: Any, *arguments: Any) -> Any:
                return await fail(script, *arguments)

            given_up = [begun(locks, fair=True) for _ in range(2)]
            await server.queued(2)
            # So that they fail; and their clean-ups do, too.
            performer._sibling.run = fail if kind == "sync" else fail_async
            server.client.persist(keys_of(server.namespace, "r")[0])
            for task in given_up:
                with pytest.raises(LockServiceError, match="no expiry"):
                    await task
            performer._sibling.run = run
            server.client.expire(keys_of(server.namespace, "r")[0], 60)
            third = begun(others, fair=True, blocking_timeout=3)
            await server.queued(3)
            await held.release()
            # Those two would cost two seconds each, if they were believed to be alive.
            await (await third).release()


class TestForks:
    def test_a_child_waits_for_itself(self, redis_url: str, redis_namespace: str) -> None:
        locks = RedisLockService.from_url(redis_url, namespace=redis_namespace)
        held = locks.acquire("r", ttl=60)
        waiting = threading.Thread(target=lambda: locks.acquire("r", ttl=60).release())
        waiting.start()
        server = Server(redis.Redis.from_url(redis_url), redis_namespace)
        asyncio.run(server.queued())
        theirs = locks.acquire("s", ttl=60)
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                locks.acquire("s", ttl=60, blocking_timeout=20).release()
                os._exit(0)
            os._exit(1)
        asyncio.run(server.queued(1, "s"))
        assert server.listeners() == 2
        theirs.release()
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        held.release()
        waiting.join()
        assert server.leftovers() == []
        locks.close()
        server.client.close()

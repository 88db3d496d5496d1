"""Waiting for a lock on a real server: woken at once, and never for good asleep."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import signal
import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fencing.errors import LockNotAcquiredError, LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService, listening, subscribing
from fencing.locks.redis.permissions import acl_rules
from fencing.locks.redis.scripts import RELEASE, keys_of
from tests.contract.facade import ThreadedLocks, in_thread

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fencing.embedded import ValkeyProcess
    from fencing.embedded.proxy import TcpProxy

MESSAGE = b"\r\nmessage\r\n"


def begun(locks: Any, resource: str = "r", **wishes: Any) -> asyncio.Task[Any]:
    return asyncio.ensure_future(locks.acquire(resource, **{"ttl": 30, **wishes})._begin())


async def until(condition: Callable[[], object]) -> None:
    """Wait until something is so that nobody tells of."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - see above
            await asyncio.sleep(0.002)


def in_line(locks: Any, resource: str = "r") -> int:
    """How many stand in the line of a service's process for a resource."""
    service = locks.locks if isinstance(locks, ThreadedLocks) else locks
    return len(service._redis._waiters.lines._lines.get(resource, ()))


class Server:
    """What a test sees of Redis, and does to it, behind the services' backs."""

    def __init__(self, client: redis.Redis, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    def waiting(self, resource: str = "r") -> int:
        return self.client.zcard(keys_of(self.namespace, resource)[2])

    def listeners(self) -> int:
        return len(self.client.pubsub_channels(f"{self.namespace}:wake:*"))

    def connections(self) -> int:
        return len(self.client.client_list())

    def commands(self) -> int:
        stats = self.client.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("evalsha", "eval"))

    async def queued(self, count: int = 1, resource: str = "r") -> None:
        await until(lambda: self.waiting(resource) == count)

    def leftovers(self) -> list[bytes]:
        ends = b":lock", b":queue"
        return [key for key in self.client.scan_iter(f"{self.namespace}:*") if key.endswith(ends)]


@pytest.fixture
def server(redis_client: redis.Redis, redis_namespace: str) -> Server:
    return Server(redis_client, redis_namespace)


@pytest.fixture
def others(redis_url: str, redis_namespace: str) -> Any:
    """Another service on the same server, without the proxy."""
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as others:
        yield ThreadedLocks(others)


@contextlib.asynccontextmanager
async def service(kind: str, url: str, namespace: str, **client: Any) -> AsyncIterator[Any]:
    if kind == "sync":
        with RedisLockService.from_url(url, namespace=namespace, **client) as locks:
            yield ThreadedLocks(locks)
    else:
        async with AsyncRedisLockService.from_url(url, namespace=namespace, **client) as locks:
            yield locks


class TestBeingWoken:
    async def test_a_release_wakes_the_waiter(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        proxy.keep_back(MESSAGE)  # from now on nothing but the message can tell
        await held.release()
        await until(proxy.kept_back.is_set)
        assert not task.done()
        proxy.deliver()
        lease = await task
        assert lease.token == held.token + 1
        await until(lambda: lease.remaining > 25)  # made to last its ttl in the background
        await lease.release()
        assert server.leftovers() == []

    async def test_what_was_handed_over_is_made_to_last(
        self, locks: Any, others: Any, server: Server, redis_client: redis.Redis
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        await held.release()
        async with await task as lease:
            await until(lambda: redis_client.pttl(keys_of(server.namespace, "r")[0]) > 25_000)
            await until(lambda: lease.remaining > 25)
        assert not lease.lost

    async def test_a_guarded_service_makes_it_last_before_it_returns(
        self, redis_url: str, others: Any, server: Server
    ) -> None:
        for kind in ("sync", "async"):
            async with service(kind, redis_url, server.namespace) as locks:
                (locks.locks if kind == "sync" else locks).note_guarded()
                held = await others.acquire("r", ttl=30)
                task = begun(locks)
                await server.queued()
                await held.release()
                async with await task as lease:
                    assert lease.remaining > 25

    async def test_a_lost_message_costs_a_moment(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        proxy.keep_back(MESSAGE)
        await held.release()
        lease = await task
        assert proxy.kept_back.is_set()
        # It was given what it had been handed, before that had run out after two seconds.
        assert lease.token == held.token + 1
        proxy.deliver(times=0)
        await lease.release()

    async def test_a_late_message_and_its_double_do_no_harm(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy, lock_value: Any
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task, second = begun(locks, fair=True), begun(locks, "s")
        await server.queued()
        proxy.keep_back(MESSAGE)
        await held.release()
        async with await task as lease:
            proxy.deliver(times=2)
            await (await second).release()
            assert lock_value("r").startswith(f"{lease.token}:{lease.holder}:")
            await lease.renew()

    async def test_a_waiter_is_told_twice_in_a_row(
        self, locks: Any, others: Any, server: Server, proxy: TcpProxy
    ) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        proxy.keep_back(MESSAGE)
        await held.release()
        await until(proxy.kept_back.is_set)
        proxy.deliver(times=3)
        async with await task as lease:
            assert lease.token == held.token + 1
        assert server.leftovers() == []

    async def test_who_asks_once_does_not_listen(
        self, locks: Any, others: Any, server: Server
    ) -> None:
        async with others.acquire("r", ttl=30):
            assert await locks.try_acquire("r") is None
            for patience in ({"blocking": False}, {"blocking_timeout": 0}):
                with pytest.raises(LockNotAcquiredError):
                    await locks.acquire("r", **patience)
            assert server.waiting() == server.listeners() == 0

    async def test_nobody_listens_for_an_uncontended_lock(
        self, locks: Any, server: Server, proxy: TcpProxy
    ) -> None:
        async with locks.acquire("r", ttl=30):
            assert server.listeners() == 0
        assert proxy.connections == 0


class TestDeadlines:
    async def test_who_gives_up_leaves_the_queue(
        self, locks: Any, others: Any, server: Server
    ) -> None:
        async with others.acquire("r", ttl=30):
            with pytest.raises(LockNotAcquiredError) as caught:
                await locks.acquire("r", blocking_timeout=0.2)
            assert caught.value.waited >= 0.2
            assert server.waiting() == 0

    async def test_there_is_a_last_attempt(self, locks: Any, others: Any, server: Server) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks, blocking_timeout=0.5)  # less than the time between two requests
        await server.queued()
        server.client.delete(*keys_of(server.namespace, "r"))  # wakes nobody
        async with await task as lease:
            assert lease.token == 1
        assert held.token == 1

    async def test_who_stands_in_line_has_one_as_well(
        self, locks: Any, others: Any, server: Server
    ) -> None:
        held = await others.acquire("r", ttl=30)
        first = begun(locks)
        await server.queued()
        task = begun(locks, blocking_timeout=0.3)
        with pytest.raises(LockNotAcquiredError):
            await task
        assert server.waiting() == 1
        await held.release()
        await (await first).release()

    async def test_an_expired_lock_is_taken_over(
        self, locks: Any, others: Any, server: Server
    ) -> None:
        gone = await others.acquire("r", ttl=0.5)
        async with await begun(locks, blocking_timeout=20) as lease:
            assert gone.expired
            assert lease.token > gone.token
        assert server.leftovers() == []

    @pytest.mark.parametrize("kind", ["sync", "async"])
    @pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
    async def test_are_kept_when_redis_is_gone(
        self, kind: str, own_valkey: ValkeyProcess, how: signal.Signals
    ) -> None:
        async with service(kind, own_valkey.url, "n", socket_timeout=None) as locks:
            await locks.acquire("r", ttl=60)
            task = begun(locks, blocking_timeout=1.5)
            with redis.Redis.from_url(own_valkey.url) as client:
                await Server(client, "n").queued()
            assert own_valkey.pid is not None
            os.kill(own_valkey.pid, how)
            try:
                with pytest.raises(LockServiceError):
                    await task
            finally:
                if how is signal.SIGSTOP:
                    os.kill(own_valkey.pid, signal.SIGCONT)


class TestLosing:
    @pytest.mark.parametrize("times", [1, 3])
    async def test_the_channel(self, locks: Any, others: Any, server: Server, times: int) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        for _ in range(times):
            await until(lambda: server.listeners() == 1)
            assert server.client.client_kill_filter(_type="pubsub") >= 1
        await until(lambda: server.listeners() == 1)
        await held.release()
        await (await task).release()

    async def test_the_channel_early_costs_nobody_his_place(
        self, locks: Any, others: Any, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listening, "AGAIN_SECONDS", 600)
        held = await others.acquire("r", ttl=30)
        first = begun(locks, fair=True)
        await server.queued()
        assert server.client.client_kill_filter(_type="pubsub") >= 1
        await until(lambda: server.listeners() == 1)
        second = begun(others, fair=True)
        await server.queued(2)
        await held.release()
        lease = await first
        assert not second.done()
        await lease.release()
        await (await second).release()

    async def test_the_scripts(self, locks: Any, others: Any, server: Server) -> None:
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        server.client.script_flush()
        await held.release()
        await (await task).release()

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_all_that_redis_had(self, kind: str, own_valkey: ValkeyProcess) -> None:
        async with service(kind, own_valkey.url, "n") as locks:
            for _ in range(5):
                await (await locks.acquire("r")).release()
            await locks.acquire("r", ttl=60)
            task = begun(locks)
            with redis.Redis.from_url(own_valkey.url) as client:
                await Server(client, "n").queued()
                client.flushall()
            assert (await task).token == 1

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_redis_for_a_moment(self, kind: str, own_valkey: ValkeyProcess) -> None:
        async with service(kind, own_valkey.url, "n") as locks:
            await locks.acquire("r", ttl=60)
            task = begun(locks)
            with redis.Redis.from_url(own_valkey.url) as client:
                await Server(client, "n").queued()
            await in_thread(own_valkey.kill)
            await in_thread(own_valkey.start)
            assert (await task).token == 1

    async def test_a_connection_that_is_silent(
        self,
        locks: Any,
        others: Any,
        server: Server,
        proxy: TcpProxy,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(subscribing, "HEARTBEAT_SECONDS", 0.1)
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        await until(lambda: proxy.commands("PING") >= 2)  # and they were answered
        subscribed = proxy.commands("SUBSCRIBE")
        proxy.keep_back(b"pong", b"PONG")  # as the two protocols say it
        await until(lambda: proxy.commands("SUBSCRIBE") > subscribed)
        proxy.deliver(times=0)
        await held.release()
        await (await task).release()

    async def test_interest(
        self, locks: Any, others: Any, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(subscribing, "HEARTBEAT_SECONDS", 0.1)
        for _ in range(2):
            held = await others.acquire("r", ttl=30)
            task = begun(locks)
            await server.queued()
            assert server.listeners() == 1
            await held.release()
            await (await task).release()
            await until(lambda: server.listeners() == 0)

    async def test_the_service_goes_on_after_close(
        self, redis_url: str, server: Server, others: Any
    ) -> None:
        locks = RedisLockService.from_url(redis_url, namespace=server.namespace)
        for _ in range(2):
            held = await others.acquire("r", ttl=30)
            task = begun(ThreadedLocks(locks))
            await server.queued()
            await held.release()
            await (await task).release()
            locks.close()
            assert server.listeners() == 0


class TestPermissions:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_without_them_waiting_asks_now_and_then(
        self, kind: str, own_valkey: ValkeyProcess, caplog: pytest.LogCaptureFixture
    ) -> None:
        with redis.Redis.from_url(own_valkey.url) as client:
            rules = acl_rules("n").replace("&n:wake:*", "resetchannels")
            client.execute_command("ACL SETUSER", "u", "on", ">p", "+hello", *rules.split())
        url = f"redis://u:p@127.0.0.1:{own_valkey.port}"
        with caplog.at_level(logging.WARNING, "fencing"):
            async with service(kind, url, "n") as locks:
                for _ in range(2):
                    held = await locks.acquire("r", ttl=30)
                    task = begun(locks)
                    await asyncio.sleep(0.05)
                    assert not task.done()
                    await held.release()
                    await (await task).release()
        (record,) = caplog.records
        assert "&n:wake:*" in record.getMessage()

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_those_that_are_listed_suffice(
        self, kind: str, own_valkey: ValkeyProcess
    ) -> None:
        with redis.Redis.from_url(own_valkey.url) as client:
            client.execute_command("ACL SETUSER", "u", "on", ">p", *acl_rules("n").split())
            async with service(kind, f"redis://u:p@127.0.0.1:{own_valkey.port}", "n") as locks:
                held = await locks.acquire("r", ttl=30)
                task = begun(locks)
                await Server(client, "n").queued()
                await held.release()
                await (await task).release()


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
            for resource in set(resources):
                await server.queued(1, resource)
            if not spread:
                assert server.commands() - before < 20
            assert server.connections() - connections <= 4 + 4 + 1
            before = server.commands()
            for lease in held:
                await lease.release()

            # A release has two seconds, the wait for one of the four connections included.
            few = asyncio.Semaphore(20)

            async def release(task: asyncio.Task[Any]) -> None:
                lease = await task
                async with few:
                    await lease.release()

            await asyncio.gather(*map(release, tasks))
            # To register, to take and to release; and what waits asks once a second.
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

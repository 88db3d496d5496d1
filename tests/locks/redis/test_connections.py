"""The connections of a service: shared fairly, never out of step, and nobody else's."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import threading
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel

from fencing.clock import now
from fencing.embedded.proxy import TcpProxy
from fencing.errors import LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.bounded import FRESH_SECONDS, async_bounded
from fencing.locks.redis.stack import AllInUseError, AsyncConnectionStack
from tests.contract.facade import ThreadedLocks
from tests.locks.redis.waiting import until
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fencing.embedded import ValkeyProcess
    from tests.support.child import Parent


class TestIdle:
    async def test_one_that_was_cut_is_opened_anew_and_nothing_is_asked_twice(
        self, locks: Any, proxy: TcpProxy
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        await lease.renew()  # whose script Redis knows from now on
        for _ in range(5):
            connection_of(locks)._answered_at = -math.inf  # as if that were some time ago
            proxy.cut()
            proxy.reset_counts()
            await lease.renew()
            assert proxy.connections == 1
            assert proxy.commands("EVALSHA", "EVAL") == 1
        await lease.release()

    async def test_one_with_something_unread_is_opened_anew(
        self, locks: Any, proxy: TcpProxy
    ) -> None:
        lease = await locks.acquire("r", ttl=60)
        await lease.renew()
        proxy.reset_counts()
        (connection,) = locks_stack(locks)._idle
        connection._answers.feed(b"*2\r\n$7\r\nrenewed\r\n$")
        await lease.renew()
        assert proxy.connections == 1
        await lease.release()

    async def test_the_one_used_last_is_used_next(self, locks: Any) -> None:
        await asyncio.gather(*[locks.try_acquire(f"r{n}", ttl=60) for n in range(4)])
        stack = locks_stack(locks)
        idle = list(stack._idle)
        await locks.try_acquire("another", ttl=60)
        assert stack._idle == idle


def locks_stack(locks: Any) -> Any:
    service = locks.locks if isinstance(locks, ThreadedLocks) else locks
    return service._redis._sibling._way._stack


def connection_of(locks: Any) -> Any:
    return locks_stack(locks)._idle[-1]


class Noisy:
    """What a connection looks at, and sees that something has come."""

    def is_quiet(self) -> bool:
        return False

    def poll(self, milliseconds: float) -> list[object]:
        assert milliseconds == 0
        return ["something"]


class TestLookingAtThem:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_one_that_has_just_answered_is_believed(
        self, proxy: TcpProxy, redis_namespace: str, kind: str
    ) -> None:
        if kind == "sync":
            service: Any = RedisLockService.from_url(proxy.url, namespace=redis_namespace)
            service.acquire("r", ttl=60)
        else:
            service = AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace)
            await service.acquire("r", ttl=60)
        connection = connection_of(service)
        is_good = connection.is_ready if kind == "sync" else connection.is_quiet
        connection._socket = connection._watch = Noisy()
        connection._answered_at = now() + 60
        assert is_good()
        connection._answered_at = now() - FRESH_SECONDS
        assert not is_good()
        await connection.disconnect() if kind == "async" else connection.disconnect()

    async def test_one_that_has_ended_all_the_same_costs_another_attempt(
        self, locks: Any, proxy: TcpProxy
    ) -> None:
        await locks.acquire("r", ttl=60)
        connection_of(locks)._answered_at = now() + 60
        proxy.cut()
        assert await locks.try_acquire("another", ttl=60)


class TestOneForMany:
    def test_threads_get_it_in_the_order_in_which_they_came(
        self, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        with RedisLockService.from_url(
            proxy.url, namespace=redis_namespace, max_connections=1
        ) as locks:
            stack = locks_stack(locks)
            connection = stack.take(now() + 20)
            got: list[int] = []

            def take(number: int) -> None:
                mine = stack.take(now() + 20)
                got.append(number)
                stack.give_back(mine)

            threads = []
            for number in range(8):
                threads.append(threading.Thread(target=take, args=(number,)))
                threads[-1].start()
                while len(stack._waiting) <= number:
                    pass
            stack.give_back(connection)
            for thread in threads:
                thread.join()
            assert got == list(range(8))

    async def test_tasks_get_it_in_the_order_in_which_they_came(
        self, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        async with AsyncRedisLockService.from_url(
            proxy.url, namespace=redis_namespace, max_connections=1
        ) as locks:
            stack = locks_stack(locks)
            connection = await stack.take(now() + 20)
            got: list[int] = []

            async def take(number: int) -> None:
                mine = await stack.take(now() + 20)
                got.append(number)
                stack.give_back(mine)

            tasks = [asyncio.ensure_future(take(number)) for number in range(8)]
            await asyncio.sleep(0)
            assert len(stack._waiting) == 8
            assert stack.take_ready() is None
            stack.give_back(connection)
            await asyncio.gather(*tasks)
            assert got == list(range(8))

    async def test_who_is_cancelled_while_waiting_takes_nothing_with_him(
        self, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        async with AsyncRedisLockService.from_url(
            proxy.url, namespace=redis_namespace, max_connections=1
        ) as locks:
            stack = locks_stack(locks)
            connection = await stack.take(now() + 20)
            before, at_the_moment, after = (
                asyncio.ensure_future(stack.take(now() + 20)) for _ in range(3)
            )
            await asyncio.sleep(0)
            before.cancel()
            await asyncio.sleep(0)
            stack.give_back(connection)  # which is the second one's
            at_the_moment.cancel()
            assert await after is connection
            stack.give_back(connection)
            assert await stack.take(now() + 20) is connection
            stack.give_back(connection)

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_who_only_waited_for_it_is_told_so(
        self, kind: str, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        settings: dict[str, Any] = {"namespace": redis_namespace, "max_connections": 1}
        async with contextlib.AsyncExitStack() as stack:
            if kind == "sync":
                service = stack.enter_context(RedisLockService.from_url(proxy.url, **settings))
                locks: Any = ThreadedLocks(service)
                taken = locks_stack(locks).take(now() + 20)
            else:
                locks = AsyncRedisLockService.from_url(proxy.url, **settings)
                await stack.enter_async_context(locks)
                taken = await locks_stack(locks).take(now() + 20)
            for patience in ({"blocking": False}, {"blocking_timeout": 0.1}):
                with pytest.raises(LockServiceError, match="max_connections allows") as caught:
                    await locks.acquire("r", **patience)
                assert "did not answer" not in str(caught.value)
            locks_stack(locks).give_back(taken)
            await (await locks.acquire("r", blocking=False)).release()

    @pytest.mark.parametrize("in_step", [True, False])
    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_who_waits_in_vain_knows_whether_others_were_answered(
        self, kind: str, proxy: TcpProxy, redis_namespace: str, *, in_step: bool
    ) -> None:
        settings: dict[str, Any] = {"namespace": redis_namespace, "max_connections": 1}
        async with contextlib.AsyncExitStack() as stack:
            if kind == "sync":
                service = stack.enter_context(RedisLockService.from_url(proxy.url, **settings))
                connections = locks_stack(service)
                taken = connections.take(now() + 20)

                def begun(end: float) -> Any:
                    return asyncio.ensure_future(asyncio.to_thread(connections.take, end))
            else:
                asynchronous = AsyncRedisLockService.from_url(proxy.url, **settings)
                await stack.enter_async_context(asynchronous)
                connections = locks_stack(asynchronous)
                taken = await connections.take(now() + 20)

                def begun(end: float) -> Any:
                    return asyncio.ensure_future(connections.take(end))

            first = begun(now() + 20)
            await until(lambda: len(connections._waiting) == 1)
            second = begun(now() + 2)
            await until(lambda: len(connections._waiting) == 2)
            if not in_step:
                await taken.disconnect() if kind == "async" else taken.disconnect()
            connections.give_back(taken)
            assert await first is taken
            with pytest.raises(AllInUseError) as caught:
                await second
            assert caught.value.busy is in_step
            connections.give_back(taken)

    async def test_who_cannot_connect_leaves_the_right_to(
        self, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        settings: dict[str, Any] = {"namespace": redis_namespace, "max_connections": 1}
        with RedisLockService.from_url(proxy.url, **settings) as sync:
            async with AsyncRedisLockService.from_url(proxy.url, **settings) as asynchronous:
                for locks in (ThreadedLocks(sync), asynchronous):
                    proxy.refuse()
                    for _ in range(3):
                        with pytest.raises(LockServiceError):
                            await locks.try_acquire("r")
                    proxy.accept()
                    lease = await locks.try_acquire("r")
                    assert lease is not None
                    await lease.release()

    async def test_who_is_cancelled_while_it_greets_closes_it(self, redis_url: str) -> None:
        greets = asyncio.Event()

        async def greet(_connection: Any) -> None:
            greets.set()
            await asyncio.Event().wait()  # as a provider of credentials that says nothing

        kind = async_bounded(redis.asyncio.Connection)
        place = redis.asyncio.ConnectionPool.from_url(redis_url).connection_kwargs
        connection = kind(**place, redis_connect_func=greet)
        connecting = asyncio.ensure_future(connection.connect())
        await greets.wait()
        assert connection.is_connected
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        assert not connection.is_connected
        await asyncio.sleep(0)  # the loop closes its socket a turn later

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_many_at_once_all_get_their_locks(
        self, kind: str, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        settings: dict[str, Any] = {"namespace": redis_namespace, "max_connections": 1}
        with RedisLockService.from_url(proxy.url, **settings) as sync:
            async with AsyncRedisLockService.from_url(proxy.url, **settings) as asynchronous:
                locks: Any = ThreadedLocks(sync) if kind == "sync" else asynchronous

                async def hold(number: int) -> None:
                    for _ in range(5):
                        async with locks.acquire(f"r{number}", ttl=60):
                            pass

                await asyncio.gather(*map(hold, range(24)))
                assert proxy.connections == 1


class SyncSentinel(redis.sentinel.Sentinel):
    """Knows where the primary is without asking anybody."""

    primary: ClassVar[list[Any]] = []

    def discover_master(self, service_name: str) -> tuple[str, int]:  # noqa: ARG002 - as its base
        return tuple(self.primary)


class AsyncSentinel(redis.asyncio.sentinel.Sentinel):
    """Knows where the primary is without asking anybody."""

    primary: ClassVar[list[Any]] = []

    async def discover_master(self, service_name: str) -> tuple[str, int]:  # noqa: ARG002 - as its base
        return tuple(self.primary)


@pytest.fixture(params=["sync", "async"])
async def following(
    request: pytest.FixtureRequest, own_valkey: ValkeyProcess
) -> AsyncIterator[tuple[Any, Any]]:
    """A service whose Sentinel says where the primary is, and that Sentinel."""
    sentinel: Any = (SyncSentinel if request.param == "sync" else AsyncSentinel)([("127.0.0.1", 1)])
    sentinel.primary[:] = ["127.0.0.1", own_valkey.port]
    client = sentinel.master_for("main")
    if request.param == "sync":
        with RedisLockService(client) as locks:
            yield ThreadedLocks(locks), sentinel
    else:
        async with AsyncRedisLockService(client) as asynchronous:
            yield asynchronous, sentinel


class TestFailover:
    async def test_sentinel_is_asked_again_when_the_primary_is_one_no_more(
        self, following: Any, own_valkey: ValkeyProcess, proxy: TcpProxy
    ) -> None:
        locks, sentinel = following
        await asyncio.gather(*[locks.try_acquire(f"before {n}", ttl=60) for n in range(3)])
        with redis.Redis.from_url(own_valkey.url) as client:
            client.execute_command("REPLICAOF", "127.0.0.1", proxy.port)
        sentinel.primary[:] = ["127.0.0.1", proxy.port]
        lease = await locks.acquire("r", ttl=60, blocking_timeout=20)
        assert proxy.commands("EVALSHA") >= 1
        await lease.release()
        # The others are told by the pool, not each by a refusal.
        with redis.Redis.from_url(own_valkey.url) as client:
            client.config_resetstat()
            await asyncio.gather(*[locks.try_acquire(f"after {n}", ttl=60) for n in range(3)])
            assert "errorstat_READONLY" not in client.info("errorstats")

    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_without_sentinel_a_refused_connection_is_not_used_again(
        self, kind: str, own_valkey: ValkeyProcess
    ) -> None:
        # Behind one name the next connection may lead to another server.
        with (
            TcpProxy.to(own_valkey.url) as proxy,
            redis.Redis.from_url(own_valkey.url) as client,
            RedisLockService.from_url(proxy.url) as sync,
        ):
            async with AsyncRedisLockService.from_url(proxy.url) as asynchronous:
                locks: Any = ThreadedLocks(sync) if kind == "sync" else asynchronous
                await locks.try_acquire("r", ttl=60)
                client.execute_command("REPLICAOF", "127.0.0.1", 1)
                proxy.reset_counts()
                with pytest.raises(LockServiceError, match="READONLY"):
                    await locks.acquire("other", ttl=60)
                assert proxy.connections == 1  # the clean-up's


def use_in_a_forked_child(parent: Parent, url: str, namespace: str) -> None:
    locks = RedisLockService.from_url(url, namespace=namespace)
    lease = locks.acquire("r", ttl=60)
    parent.report("connected")
    parent.wait_for("fork")
    pid = os.fork()
    if pid == 0:
        status = 1
        with contextlib.suppress(BaseException):
            locks.acquire("the child's", ttl=60).release()
            locks.close()
            status = 0
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    lease.renew()
    lease.release()
    parent.report("done", status=status)


def use_in_a_forked_child_of_a_loop(parent: Parent, url: str, namespace: str) -> None:
    locks = AsyncRedisLockService.from_url(url, namespace=namespace, max_connections=1)

    async def in_the_child() -> None:
        async with locks.acquire("the child's", ttl=60):
            pass
        await locks.aclose()

    async def main() -> int:
        lease = await locks.acquire("r", ttl=60)
        parent.report("connected")
        parent.wait_for("fork")
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                run_on_a_new_loop(in_the_child())
                status = 0
            os._exit(status)
        status = os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])
        await lease.renew()
        await lease.release()
        return status

    parent.report("done", status=asyncio.run(main()))


def run_on_a_new_loop(work: Any) -> None:
    """As ``asyncio.run``, in a process that was forked while a loop was running."""
    asyncio.events._set_running_loop(None)
    asyncio.run(work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
@pytest.mark.parametrize("use", [use_in_a_forked_child, use_in_a_forked_child_of_a_loop])
def test_a_forked_child_has_connections_of_its_own(
    use: Any, proxy: TcpProxy, redis_namespace: str
) -> None:
    with ChildProcess(use, proxy.url, redis_namespace) as child:
        child.wait_for("connected")
        proxy.reset_counts()
        child.tell("fork")
        assert child.wait_for("done")["status"] == 0
        child.check()
        # One more, and the parent's own is neither closed nor used.
        assert proxy.connections == 1


async def test_a_forked_child_of_a_loop_finalizes_nothing_of_its_parent_s(
    proxy: TcpProxy,
) -> None:
    client = redis.asyncio.Redis.from_url(proxy.url)
    stack = AsyncConnectionStack(client.connection_pool)
    assert stack.take_ready() is None
    connection = stack._make()
    stack.forget()
    from fencing.locks.redis.stack import _inherited

    assert _inherited.pop() is connection

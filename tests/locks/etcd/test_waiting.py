"""Waiting for locks in etcd: in order, without a herd, and whatever becomes of other waiters."""

from __future__ import annotations

import asyncio
import base64
import random
from typing import TYPE_CHECKING, Any

import pytest

from fencing import AsyncEtcdLockService, LockNotAcquiredError
from fencing.embedded.etcd import ask_etcd
from fencing.locks.etcd.keys import Keys
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from fencing.embedded.proxy import TcpProxy
    from tests.support.child import Parent


def places_of(url: str, namespace: str, resource: str) -> int:
    """How many places there are of a resource."""
    first, last = (base64.b64encode(key).decode() for key in Keys(namespace).places(resource))
    endpoint = url.replace("etcd", "http").rstrip("/")
    answer = ask_etcd(endpoint, "v3/kv/range", {"key": first, "range_end": last, "keys_only": True})
    return int(answer.get("count", 0))


async def until_waiting(locks: Any, resource: str, waiters: int) -> None:
    async with asyncio.timeout(20):
        while (await locks.inspect(resource)).waiters < waiters:  # noqa: ASYNC110 - of others
            await asyncio.sleep(0.01)


async def until_watching(proxy: TcpProxy) -> None:
    async with asyncio.timeout(20):
        while not proxy.commands("/v3/watch"):  # noqa: ASYNC110 - the proxy only counts
            await asyncio.sleep(0.01)


async def test_fair_waiters_are_served_in_the_order_of_asking(locks, others):
    served = []

    async def wait(service: Any, name: str) -> None:
        async with service.acquire("r", ttl=30, fair=True):
            served.append(name)

    holding = await others.acquire("r", ttl=30)
    waiting = []
    names = "abcdef"
    for number, name in enumerate(names):
        service = (locks, others)[number % 2]
        waiting.append(asyncio.ensure_future(wait(service, name)))
        await until_waiting(others, "r", number + 1)
    await holding.release()
    await asyncio.gather(*waiting)
    assert served == list(names)


async def test_of_one_process_only_the_first_has_a_place(locks, others, proxy: TcpProxy):
    async def wait() -> None:
        async with locks.acquire("r", ttl=30):
            pass

    async with others.acquire("r", ttl=30):
        waiting = [asyncio.ensure_future(wait()) for _ in range(20)]
        await until_waiting(others, "r", 1)
        await asyncio.sleep(0.2)
        assert (await others.inspect("r")).waiters == 1
    await asyncio.gather(*waiting)


async def test_a_waiter_is_told_and_does_not_ask(locks, others, proxy: TcpProxy):
    async with others.acquire("r", ttl=30):
        waiting = asyncio.ensure_future(locks.acquire("r", ttl=30)._begin())
        await until_watching(proxy)
        proxy.reset_counts()
        await asyncio.sleep(0.5)  # it looks after two seconds
        assert proxy.commands() == 0
    await (await waiting).release()


@pytest.mark.parametrize(("tasks", "fair"), [(200, False), (50, True)])
async def test_many_tasks_wait_in_turn(etcd_url, etcd_namespace, *, tasks: int, fair: bool):
    inside, served = 0, []

    async def work(locks: AsyncEtcdLockService, number: int) -> None:
        nonlocal inside
        async with locks.acquire("r", ttl=60, fair=fair):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1
            served.append(number)

    async with AsyncEtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as locks:
        await asyncio.gather(*[work(locks, number) for number in range(tasks)])
    assert served == list(range(tasks))
    assert places_of(etcd_url, etcd_namespace, "r") == 0


async def test_a_waiter_whose_time_is_up_leaves_no_place(locks, others):
    async with others.acquire("r", ttl=30, owner="the holder") as held:
        with pytest.raises(LockNotAcquiredError, match="the holder") as caught:
            await locks.acquire("r", blocking_timeout=0.3)
        assert f"(token {held.token})" in str(caught.value)
        assert caught.value.waited >= 0.3
        assert (await others.inspect("r")).waiters == 0


async def test_cancelled_acquisitions_leave_nothing_behind(etcd_url, etcd_namespace):
    """Cancelled at random, while they ask, wait, or clean up."""
    chance = random.Random(7)
    async with AsyncEtcdLockService.from_url(etcd_url, namespace=etcd_namespace) as locks:

        async def attempt(number: int) -> None:
            fair = number % 10 == 0
            async with locks.acquire(f"r{number % 8}", ttl=600, fair=fair):
                await asyncio.sleep(chance.random() * 0.02)

        # Not all 200 at once: each is given two seconds to clean up, on however busy a machine.
        for _ in range(10):
            tasks = [asyncio.ensure_future(attempt(number)) for number in range(20)]
            for task in chance.sample(tasks, 20):
                await asyncio.sleep(chance.random() * 0.01)
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for number in range(8):
            assert places_of(etcd_url, etcd_namespace, f"r{number}") == 0


async def test_a_cancellation_while_nothing_is_heard_leaves_nothing_behind(
    proxy: TcpProxy, etcd_url, etcd_namespace
):
    async with AsyncEtcdLockService.from_url(proxy.url, namespace=etcd_namespace) as locks:
        proxy.keep_back(b'"succeeded":true')  # the place was made
        asking = asyncio.ensure_future(locks.acquire("r", ttl=600)._begin())
        assert await asyncio.get_running_loop().run_in_executor(None, proxy.kept_back.wait, 10)
        assert places_of(etcd_url, etcd_namespace, "r") == 1
        proxy.hold()
        sent = proxy.commands()
        asking.cancel()
        while proxy.commands() == sent:  # noqa: ASYNC110 - the proxy only counts
            await asyncio.sleep(0.001)
        asking.cancel()  # while it cleans up
        await asyncio.sleep(0)
        proxy.release()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert places_of(etcd_url, etcd_namespace, "r") == 0


async def waits(parent: Parent, url: str, namespace: str) -> None:
    async with (
        AsyncEtcdLockService.from_url(url, namespace=namespace) as locks,
        locks.acquire("r", ttl=3600),
    ):
        parent.report("acquired")


async def test_a_waiter_that_is_stopped_delays_others_by_seconds(others, etcd_url, etcd_namespace):
    """Whatever its ttl; for etcd it is as good as dead."""
    holding = await others.acquire("r", ttl=60)
    with ChildProcess(waits, etcd_url, etcd_namespace) as child:
        await until_waiting(others, "r", 1)
        child.suspend()
        waiting = asyncio.ensure_future(others.acquire("r", ttl=30, blocking_timeout=30)._begin())
        await until_waiting(others, "r", 2)
        await holding.release()
        lease = await waiting
        await lease.release()
        # Its place was lost; it takes another one, and gets the lock.
        child.resume()
        child.wait_for("acquired")


async def test_a_watch_that_ends_costs_nothing_but_a_look(locks, others, proxy: TcpProxy):
    async with others.acquire("r", ttl=30):
        waiting = asyncio.ensure_future(locks.acquire("r", ttl=30)._begin())
        await until_watching(proxy)
        proxy.cut()
        await asyncio.sleep(0.3)
        assert not waiting.done()
    await (await waiting).release()


async def test_history_may_be_compacted_while_one_waits(others, locks, etcd_url):
    endpoint = etcd_url.replace("etcd", "http").rstrip("/")
    async with others.acquire("r", ttl=30):
        waiting = asyncio.ensure_future(locks.acquire("r", ttl=30)._begin())
        await until_waiting(others, "r", 1)
        for _ in range(3):
            put = ask_etcd(endpoint, "v3/kv/put", {"key": "eA==", "value": "eQ=="})
            revision = put["header"]["revision"]
            ask_etcd(endpoint, "v3/kv/compaction", {"revision": revision, "physical": True})
            await asyncio.sleep(0.7)
        assert not waiting.done()
    await (await waiting).release()

"""Signals, cancellations and forks: no lock is left behind that nobody knows of."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
import redis

from fencing import AsyncRedlockService, LeaseLostError, RedlockService
from fencing.core import held
from fencing.embedded.proxy import TcpProxy
from fencing.keepalive import agenda, keepers, rules, tickers
from fencing.lease import base as lease_base
from fencing.lease import blocks, leases
from fencing.locks import asking as common_asking
from fencing.locks import base as locks_base
from fencing.locks import performing as common_performing
from fencing.locks.redis.scripts import keys_of
from fencing.locks.redlock import acquiring, asking, performing, service, steps, waiters
from tests.contract.redlocks import url_of
from tests.support.interrupting import interrupted_before_line
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencing.embedded import ValkeyProcess
    from tests.support.child import Parent

MODULES = (
    acquiring, agenda, asking, blocks, common_asking, common_performing, held, keepers, lease_base,
    leases, locks_base, performing, rules, service, steps, tickers, waiters,
)  # fmt: skip

SECONDS = 20


@pytest.fixture
def locks(own_nodes: list[ValkeyProcess], namespace: str) -> Iterator[RedlockService]:
    # Patient, so that a busy machine makes no requests time out.
    url = url_of(own_nodes)
    with RedlockService.from_url(url, namespace=namespace, node_timeout=2.0) as locks:
        locks.acquire("warm up").release()
        yield locks


def left_on(nodes: list[ValkeyProcess], namespace: str, *, delete: bool = False) -> int:
    """On how many nodes the lock is."""
    key = keys_of(namespace, "r")[0]
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(redis.Redis(port=node.port)) for node in nodes]
        return sum(client.delete(key) if delete else client.exists(key) for client in clients)


def use_a_block(locks: RedlockService) -> None:
    with locks.acquire("r", ttl=60):
        pass


def use_a_kept_lease(locks: RedlockService) -> None:
    with locks.acquire("r", ttl=60, keepalive=True, on_lost=print) as lease:
        lease.renew()


def try_it(locks: RedlockService) -> None:
    with locks.try_acquire("r", ttl=60) or contextlib.nullcontext():
        pass


@pytest.mark.parametrize("use", [use_a_block, use_a_kept_lease, try_it])
def test_an_interrupt_before_any_line_leaves_no_lock(
    use: Callable[[RedlockService], None],
    locks: RedlockService,
    own_nodes: list[ValkeyProcess],
    namespace: str,
) -> None:
    number, interrupted = 0, True
    while interrupted:
        number += 1
        interrupted = False
        with interrupted_before_line(number, *MODULES) as lines:
            try:
                use(locks)
            except KeyboardInterrupt:
                interrupted = True
        locks.close()  # waits for what is still on its way
        assert not left_on(own_nodes, namespace), (number, lines[-3:])
    assert number > 50


def work_until_told(parent: Parent, url: str, namespace: str) -> None:
    """Acquire and release, and look after each interrupt whether a lock was left."""
    locks = RedlockService.from_url(url, namespace=namespace, node_timeout=2.0)
    interrupted = orphans = 0
    while interrupted < 60:
        delay = random.uniform(0.0001, 0.008)
        main = threading.main_thread().ident
        timer = threading.Timer(delay, signal.pthread_kill, [main, signal.SIGINT])
        try:
            timer.start()
            while timer.is_alive():
                with locks.acquire("r", ttl=60):
                    time.sleep(0.0005)
            timer.join()  # it came in a __del__ then, where nothing can be raised
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        if locks.locked("r"):
            orphans += 1
            locks.force_release("r")
    parent.report("done", interrupted=interrupted, orphans=orphans)


def test_of_60_interrupts_none_leaves_a_lock(
    own_nodes: list[ValkeyProcess], namespace: str
) -> None:
    with ChildProcess(work_until_told, url_of(own_nodes), namespace) as child:
        done = child.wait_for("done")
        child.check()
    assert done["interrupted"] == 60
    assert done["orphans"] == 0


def lock_in_a_handler(parent: Parent, url: str, namespace: str) -> None:
    """What a signal handler does comes between any two lines of what it interrupts."""
    locks = RedlockService.from_url(url, namespace=namespace, node_timeout=2.0)
    handled = 0

    def handle(*_: object) -> None:
        nonlocal handled
        with locks.acquire("handled", ttl=60):
            handled += 1

    signal.signal(signal.SIGALRM, handle)
    while handled < 100:
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0001, 0.004))
        with locks.acquire("r", ttl=60):
            pass
    signal.setitimer(signal.ITIMER_REAL, 0)
    locks.close()
    parent.report("done")


def test_a_signal_handler_may_use_the_service_that_it_interrupts(
    own_nodes: list[ValkeyProcess], namespace: str
) -> None:
    with ChildProcess(lock_in_a_handler, url_of(own_nodes), namespace) as child:
        child.wait_for("done")
        child.check()


async def test_a_cancelled_acquisition_leaves_no_lock(
    own_nodes: list[ValkeyProcess], namespace: str
) -> None:
    """Cancelled while the nodes have answered, and nobody has heard it."""
    with contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy.to(node.url)) for node in own_nodes]
        url = url_of(proxies)
        async with AsyncRedlockService.from_url(
            url, namespace=namespace, node_timeout=2.0
        ) as locks:
            await locks.acquire("warm up")
            for proxy in proxies:
                proxy.hold()
            task = asyncio.ensure_future(locks.acquire("r", ttl=60)._begin())
            loop = asyncio.get_running_loop()
            for proxy in proxies:
                assert await loop.run_in_executor(None, proxy.held.wait, SECONDS)
            assert left_on(own_nodes, namespace) == 3
            task.cancel()
            for proxy in proxies:
                proxy.release()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert left_on(own_nodes, namespace) == 0


async def test_of_100_cancellations_none_leaves_a_lock(
    own_nodes: list[ValkeyProcess], namespace: str
) -> None:
    url = url_of(own_nodes)
    async with AsyncRedlockService.from_url(url, namespace=namespace, node_timeout=2.0) as locks:
        await (await locks.acquire("r")).release()
        chance = random.Random(7)
        for _ in range(100):
            task = asyncio.ensure_future(locks.acquire("r", ttl=60)._begin())
            for _ in range(chance.randint(0, 12)):
                await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await (await task).release()
            assert left_on(own_nodes, namespace) == 0


# In a process of its own: what a loop leaves behind that is not closed properly, Python warns of.
def use_in_two_loops(parent: Parent, url: str, namespace: str) -> None:
    locks = AsyncRedlockService.from_url(url, namespace=namespace)

    async def use() -> int:
        async with locks.acquire("r", ttl=60) as lease:
            token: int = lease.token
        return token

    tokens = [asyncio.run(use()), asyncio.run(use())]
    asyncio.run(locks.aclose())
    parent.report("done", tokens=tokens)


def test_an_asynchronous_service_begins_anew_in_another_loop(
    own_nodes: list[ValkeyProcess], namespace: str
) -> None:
    with ChildProcess(use_in_two_loops, url_of(own_nodes), namespace) as child:
        assert child.wait_for("done")["tokens"] == [1, 2]
        child.check()


def fork(parent: Parent, url: str, namespace: str) -> None:
    locks = RedlockService.from_url(url, namespace=namespace, node_timeout=2.0)
    lease = locks.acquire("r", ttl=60)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert lease.lost
            lease.release()
            assert locks.try_acquire("r") is None
            with pytest.raises(LeaseLostError, match="parent"):
                lease.renew()
            with locks.acquire("own", ttl=60):
                status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    parent.report("forked", status=os.waitstatus_to_exitcode(status), owned=lease.owned())
    lease.release()


def test_a_forked_child_may_use_its_copy(own_nodes: list[ValkeyProcess], namespace: str) -> None:
    with ChildProcess(fork, url_of(own_nodes), namespace) as child:
        assert child.wait_for("forked") == {"event": "forked", "status": 0, "owned": True}
        child.check()


def exit_with_a_lock(parent: Parent, url: str, namespace: str) -> None:
    import atexit

    locks = RedlockService.from_url(url, namespace=namespace, node_timeout=2.0)
    atexit.register(locks.acquire("r", ttl=60).release)
    parent.report("has it")


def test_a_lock_is_released_even_when_the_interpreter_starts_no_threads_any_more(
    own_nodes: list[ValkeyProcess], namespace: str
) -> None:
    with ChildProcess(exit_with_a_lock, url_of(own_nodes), namespace) as child:
        child.wait_for("has it")
        child.check()
    assert left_on(own_nodes, namespace) == 0

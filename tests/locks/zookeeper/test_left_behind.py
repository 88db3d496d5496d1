"""What was interrupted, dropped or closed keeps nobody waiting."""

from __future__ import annotations

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from fencing import AsyncZooKeeperLockService, FencingError, ZooKeeperLockService
from fencing.embedded.proxy import TcpProxy
from fencing.locks import asking, lines
from fencing.locks.zookeeper import acquiring, performing, session
from tests.support.interrupting import interrupted_before_line
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 20


def test_an_interrupt_before_any_line_leaves_nobody_in_line(locks: Any) -> None:
    number, interrupted = 0, True
    while interrupted:
        number, interrupted = number + 1, False
        with interrupted_before_line(number, performing, lines):
            try:
                locks.acquire(f"r{number}", ttl=60)
            except KeyboardInterrupt:
                interrupted = True
        assert locks._zookeeper._lines._lines == {}, number
    assert number > 10


def test_an_interrupt_before_any_line_leaves_no_request_outstanding(locks: Any) -> None:
    """A place among those under way that is never given back is one less for all."""
    locks.acquire("r").release()
    number, interrupted = 0, True
    while interrupted:
        number, interrupted = number + 1, False
        with interrupted_before_line(number, session):
            try:
                locks.inspect("r")
            except KeyboardInterrupt:
                interrupted = True
            except FencingError:
                interrupted = True  # it was asked too late for its patience
        until(lambda: not locks._session._outstanding)
    assert number > 10
    locks.acquire("r").release()


@pytest.mark.parametrize("fair", [False, True])
@pytest.mark.parametrize("how", ["its task is kept", "its coroutine is closed"])
def test_a_waiter_whose_loop_was_closed_keeps_nobody_waiting(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str, looker: Any, *, fair: bool, how: str
) -> None:
    """Its service and the session live on."""
    alocks = AsyncZooKeeperLockService.from_url(zookeeper_url, namespace=zookeeper_namespace)
    lease = locks.acquire("r", ttl=60)

    async def drop() -> Any:
        task = asyncio.ensure_future(alocks.acquire("r", ttl=60, fair=fair)._begin())
        while len(looker.nodes("r")) < 2:  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0.02)
        return task

    loop = asyncio.new_event_loop()
    task = loop.run_until_complete(drop())
    loop.close()
    if how == "its coroutine is closed":  # as it is when nobody keeps it
        task.get_coro().close()

    async def go_on() -> None:
        await alocks.inspect("another")
        while len(looker.nodes("r")) > 1:  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0.02)
        await alocks.aclose()

    asyncio.run(asyncio.wait_for(go_on(), SECONDS))
    lease.release()
    task.get_coro().close()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_waiter_whose_service_is_closed_looks_again_at_once(
    kind: str, locks: Any, zookeeper_url: str, zookeeper_namespace: str, looker: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(acquiring, "LOOK_SECONDS", 1000.0)
    waiting_service = type(locks).from_url(zookeeper_url, namespace=zookeeper_namespace)
    lease = locks.acquire("r", ttl=600)

    async def in_asyncio() -> None:
        alocks = AsyncZooKeeperLockService.from_url(zookeeper_url, namespace=zookeeper_namespace)
        waiting = asyncio.ensure_future(alocks.acquire("r", ttl=60)._begin())
        while len(looker.nodes("r")) < 2:  # noqa: ASYNC110 - of the server
            await asyncio.sleep(0.02)
        await alocks.aclose()
        await asyncio.to_thread(lease.release)
        await (await asyncio.wait_for(waiting, SECONDS)).release()
        await alocks.aclose()

    if kind == "async":
        asyncio.run(in_asyncio())
        return
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(waiting_service.acquire, "r", ttl=60, blocking_timeout=2 * SECONDS)
        until(lambda: len(looker.nodes("r")) == 2)
        waiting_service.close()
        lease.release()
        waiting.result(SECONDS).release()
    waiting_service.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_offset_that_is_none_hides_only_that_resource_s_token(
    kind: str, locks: Any, alocks: Any, looker: Any
) -> None:
    leases = {name: locks.acquire(name, ttl=60) for name in ("a", "b")}
    looker.client.create(looker.space.offset("a"), b"garbage")
    if kind == "sync":
        states = {state.resource: state for state in locks.scan()}
    else:
        states = {state.resource: state async for state in alocks.scan()}
    told = {name: (state.held, state.token, state.counter) for name, state in states.items()}
    token = leases["b"].token
    assert told == {"a": (True, None, None), "b": (True, token, token)}
    assert states["a"].holder == leases["a"].holder
    assert locks.force_release("a")
    leases["b"].release()


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_clean_up_whose_connection_is_lost_is_done_before_the_call_ends(
    kind: str, zookeeper_url: str, zookeeper_namespace: str, looker: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whoever learns that his call has ended may end its service at once, or the process."""
    monkeypatch.setattr(asking, "CLEAN_UP_SECONDS", float(SECONDS))

    def lose_clean_up(locks: Any, proxy: TcpProxy, end: Callable[[], object]) -> None:
        assert proxy.held.wait(SECONDS)
        until(lambda: looker.nodes("r"))
        end()
        until(lambda: locks._session._debts)
        proxy.refuse()
        proxy.release()
        proxy.accept()

    async def in_asyncio(proxy: TcpProxy) -> None:
        async with AsyncZooKeeperLockService.from_url(
            proxy.url, namespace=zookeeper_namespace
        ) as locks:
            await (await locks.acquire("r")).release()
            proxy.hold()
            task = asyncio.ensure_future(locks.acquire("r", ttl=60)._begin())
            loop = asyncio.get_running_loop()
            end = partial(loop.call_soon_threadsafe, task.cancel)
            losing = asyncio.create_task(asyncio.to_thread(lose_clean_up, locks, proxy, end))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert looker.nodes("r") == []
            await losing

    with TcpProxy.to(zookeeper_url) as proxy:
        if kind == "async":
            asyncio.run(in_asyncio(proxy))
            return
        with ZooKeeperLockService.from_url(proxy.url, namespace=zookeeper_namespace) as locks:
            locks.acquire("r").release()
            proxy.hold()
            me = threading.get_ident()
            end = partial(signal.pthread_kill, me, signal.SIGINT)
            losing = threading.Thread(target=lose_clean_up, args=(locks, proxy, end))
            losing.start()
            with pytest.raises(KeyboardInterrupt):
                locks.acquire("r", ttl=60)
            assert looker.nodes("r") == []
            losing.join()

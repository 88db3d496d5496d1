"""A cancellation that comes at a bad moment is put off at most, and never lost."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import redis.asyncio
from redis.asyncio.connection import parse_url

from fencing import AsyncRedisLockService, LockNotAcquiredError
from fencing.clock import now
from fencing.core.performing import perform_async
from fencing.core.plan import GiveBack, Lock
from fencing.core.slots import Slots
from fencing.request import AcquireRequest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator

    from fencing.embedded.proxy import TcpProxy
    from fencing.lease import AsyncLease

PATIENCE = 20.0
"""How long a test waits for what is to happen much sooner, in seconds."""


@pytest.fixture
async def locks(proxy: TcpProxy, redis_namespace: str) -> AsyncIterator[AsyncRedisLockService]:
    async with AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks:
        await (await locks.acquire("warm up")).release()
        yield locks


async def assert_it_ends_cancelled(task: asyncio.Task[Any]) -> None:
    done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    try:
        assert done, "it goes on as if nothing had happened"
        with pytest.raises(asyncio.CancelledError):
            task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


# By redis-py, which connects with asyncio.wait_for: before Python 3.12 that swallows some.


class Swallowing(redis.asyncio.Connection):
    """A connection that goes on connecting when it is cancelled meanwhile."""

    connecting: asyncio.Event
    then: type[Exception] | None = None

    async def connect(self) -> None:
        self.connecting.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            if self.then is not None:
                raise self.then from None
        await super().connect()


@pytest.mark.parametrize("then", [None, redis.ConnectionError])
async def test_what_redis_py_swallows_ends_an_acquisition_all_the_same(
    then: type[Exception] | None,
    locks: AsyncRedisLockService,
    redis_url: str,
    redis_namespace: str,
    lock_value: Callable[[str], str | None],
) -> None:
    class Connection(Swallowing):
        connecting = asyncio.Event()

    Connection.then = then
    pool = redis.asyncio.ConnectionPool(connection_class=Connection, **parse_url(redis_url))
    async with (
        locks.acquire("held"),
        AsyncRedisLockService(redis.asyncio.Redis(connection_pool=pool), namespace=redis_namespace)
        as service,
    ):  # fmt: skip
        for resource in ("held", "free"):
            Connection.connecting.clear()
            await service.aclose()
            task = asyncio.ensure_future(service.acquire(resource).__aenter__())
            await Connection.connecting.wait()
            Connection.connecting.clear()
            # The clean-up connects, too, and must not be held up.
            Connection.connect = redis.asyncio.Connection.connect
            task.cancel()
            await assert_it_ends_cancelled(task)
            del Connection.connect
    assert lock_value("free") is None
    await pool.aclose()


async def test_what_a_health_check_swallows_ends_an_acquisition_all_the_same(
    locks: AsyncRedisLockService,
    redis_url: str,
    redis_namespace: str,
    lock_value: Callable[[str], str | None],
) -> None:
    checking = asyncio.Event()

    class Connection(redis.asyncio.Connection):
        async def check_health(self) -> None:
            if not checking.is_set():
                checking.set()
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(PATIENCE)

    pool = redis.asyncio.ConnectionPool(
        connection_class=Connection, health_check_interval=1, **parse_url(redis_url)
    )
    async with (
        locks.acquire("held"),
        AsyncRedisLockService(redis.asyncio.Redis(connection_pool=pool), namespace=redis_namespace)
        as service,
    ):  # fmt: skip
        for resource in ("held", "free"):
            checking.clear()
            task = asyncio.ensure_future(service.acquire(resource).__aenter__())
            await checking.wait()
            task.cancel()
            await assert_it_ends_cancelled(task)
    assert lock_value("free") is None
    await pool.aclose()


async def test_what_is_swallowed_while_sentinels_are_asked_ends_an_acquisition_all_the_same(
    locks: AsyncRedisLockService,
    proxy: TcpProxy,
    lock_value: Callable[[str], str | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asking = asyncio.Event()
    way: Any = locks._redis._sibling._way
    connection = way._stack._idle[-1]

    async def get_master_address() -> tuple[str, int]:
        asking.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(PATIENCE)
        return connection.host, connection.port

    pool = way._made.connection_pool
    monkeypatch.setattr(way, "_follows_sentinel", True)
    monkeypatch.setattr(pool, "master_address", (connection.host, connection.port), raising=False)
    monkeypatch.setattr(pool, "get_master_address", get_master_address, raising=False)
    for resource in ("held", "free"):
        async with locks.acquire("held") if resource == "held" else contextlib.nullcontext():
            asking.clear()
            proxy.hold()
            task = asyncio.ensure_future(locks.acquire(resource).__aenter__())
            await asking.wait()
            task.cancel()
            proxy.release()
            await assert_it_ends_cancelled(task)
    assert lock_value("free") is None


# By our own giving back, which is seen through.


def request_for(resource: str, **options: Any) -> AcquireRequest:
    return AcquireRequest(resource=resource, **options)


async def test_a_cancellation_while_a_lease_is_given_back_ends_the_plan(
    locks: AsyncRedisLockService, proxy: TcpProxy, lock_value: Callable[[str], str | None]
) -> None:
    giving_back = asyncio.Event()

    def plan() -> Generator[Any, Any, AsyncLease]:
        lease = yield Lock(request_for("r"))
        proxy.hold()
        giving_back.set()
        yield GiveBack(lease)
        return (yield Lock(request_for("held")))

    async with locks.acquire("held"):
        task = asyncio.create_task(perform_async(plan(), locks, lambda lease: lease))
        await giving_back.wait()
        await asyncio.sleep(0)
        task.cancel()
        proxy.release()
        await assert_it_ends_cancelled(task)
    assert lock_value("r") is None


async def test_a_cancellation_while_several_are_given_back_gives_back_all(
    locks: AsyncRedisLockService, proxy: TcpProxy, lock_value: Callable[[str], str | None]
) -> None:
    giving_back = asyncio.Event()

    def plan() -> Generator[Any, Any, AsyncLease]:
        one = yield Lock(request_for("one"))
        other = yield Lock(request_for("other"))
        proxy.hold()
        giving_back.set()
        yield GiveBack(one)
        yield GiveBack(other)
        raise LockNotAcquiredError("the caller would try again", resource="one")

    task = asyncio.create_task(perform_async(plan(), locks, lambda lease: lease))
    await giving_back.wait()
    await asyncio.sleep(0)
    task.cancel()
    proxy.release()
    await assert_it_ends_cancelled(task)
    assert lock_value("one") is None
    assert lock_value("other") is None


# By waiting for the loss.


@pytest.mark.parametrize("turns", range(6))
async def test_a_cancellation_beats_the_end_of_the_wait_for_a_loss(
    turns: int, locks: AsyncRedisLockService
) -> None:
    lease = await locks.acquire("r")
    task = asyncio.create_task(lease.wait_lost())
    for _ in range(5):
        await asyncio.sleep(0)
    lease.note_lost()
    for _ in range(turns):
        await asyncio.sleep(0)
    if task.cancel():
        await assert_it_ends_cancelled(task)
    else:
        assert task.result()


# By waiting for one's turn.


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancellation_beats_the_turn_of_an_admission(turns: int) -> None:
    slots = Slots(1)

    async def take() -> None:
        async with slots.aslot(now() + PATIENCE):
            await asyncio.sleep(0)

    async with slots.aslot(now()):
        task = asyncio.create_task(take())
        for _ in range(5):
            await asyncio.sleep(0)
    for _ in range(turns):
        await asyncio.sleep(0)
    if task.cancel():
        await assert_it_ends_cancelled(task)
    async with slots.aslot(now()):
        pass

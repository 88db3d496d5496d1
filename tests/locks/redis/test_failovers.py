"""A primary is replaced, by a cluster or by Sentinel, while locks are held and waited for."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fencing.errors import LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from tests.contract.facade import ThreadedLocks
from tests.support.failing import HOW, STAGES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from tests.support.failing import _Stage

KINDS = ["sync", "async"]
LONG = 120.0
"""A ttl that nobody waits for, in seconds."""


@pytest.fixture(params=STAGES, ids=lambda stage: stage.__name__)
def stage(request: pytest.FixtureRequest) -> Iterator[_Stage]:
    with request.param() as stage:
        yield stage


@contextlib.asynccontextmanager
async def service(stage: _Stage, kind: str, **settings: Any) -> AsyncIterator[Any]:
    client = stage.client(kind)
    if kind == "sync":
        with client, RedisLockService(client, **settings) as locks:
            yield ThreadedLocks(locks)
    else:
        async with client, AsyncRedisLockService(client, **settings) as locks:
            yield locks


async def answered(ask: Callable[[], Awaitable[Any]]) -> Any:
    """What comes of a request, when the service has found the new primary.

    A request that is on its way when a server stops may fail, as one without an answer.
    """
    async with asyncio.timeout(30):
        while True:
            try:
                return await ask()
            except LockServiceError:
                await asyncio.sleep(0.05)


async def queued(locks: Any, resource: str) -> None:
    """Wait until somebody waits for a resource."""
    async with asyncio.timeout(30):
        while not (await locks.inspect(resource)).waiters:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


class Scene:
    """What one kind of service has under way when the primary fails."""

    def __init__(self, kind: str, names: list[str]) -> None:
        self.kind = kind
        self.plain, self.kept, self.wanted, self.last = names

    async def begin(self, stack: contextlib.AsyncExitStack, stage: _Stage) -> None:
        self.locks = await stack.enter_async_context(service(stage, self.kind))
        # What replicas have acknowledged is not lost by these failovers.
        self.durable = await stack.enter_async_context(service(stage, self.kind, replicas=1))
        self.lease = await self.durable.acquire(self.plain, ttl=LONG)
        self.kept_lease = await self.durable.acquire(self.kept, ttl=10, keepalive=True)
        self.held = await self.durable.acquire(self.wanted, ttl=LONG)
        # It has a connection to the primary, and does not use it until all is over.
        self.late = await stack.enter_async_context(service(stage, self.kind))
        self.late_lease = await self.durable.acquire(self.last, ttl=LONG)
        await self.late.renew(self.late_lease, LONG)
        self.waiter = asyncio.ensure_future(self.locks.acquire(self.wanted, ttl=LONG)._begin())
        await queued(self.locks, self.wanted)

    async def check(self) -> None:
        # Who comes late finds the new primary in one call, also where the old one hangs.
        await self.late.release(self.late_lease)
        assert not await self.late.locked(self.last)
        # What was held is held.
        await answered(lambda: self.locks.renew(self.lease, LONG))
        assert await answered(lambda: self.locks.try_acquire(self.plain)) is None
        # Who waits is served: long before the ttl of who held it.
        await answered(lambda: self.locks.renew(self.held, LONG))
        assert not self.waiter.done()
        await self.locks.release(self.held)
        async with asyncio.timeout(LONG / 4):
            got = await self.waiter
        assert got.token > self.held.token
        await got.release()
        # What is kept alive lives.
        assert not self.kept_lease.lost
        before = self.kept_lease.trusted_until
        await answered(lambda: self.locks.renew(self.kept_lease, 10))
        assert self.kept_lease.trusted_until > before
        await self.locks.release(self.kept_lease)
        # And tokens go on.
        await self.locks.release(self.lease)
        async with self.locks.acquire(self.plain, ttl=LONG) as later:
            assert later.token > self.lease.token


@pytest.mark.parametrize("how", HOW)
async def test_leases_and_waiters_outlive_it(stage: _Stage, how: str) -> None:
    names = stage.names(8)
    async with contextlib.AsyncExitStack() as stack:
        scenes = [Scene(kind, names[4 * n : 4 * n + 4]) for n, kind in enumerate(KINDS)]
        for scene in scenes:
            await scene.begin(stack, stage)
        await asyncio.to_thread(stage.replace, how)
        await asyncio.gather(*[scene.check() for scene in scenes])

"""Every kind of lock behind one async interface: redis-py's own and ours, sync and async."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

import redis
import redis.asyncio.retry
import redis.retry
from redis.backoff import NoBackoff

from fencing.compat.redis import AsyncFencedLock, FencedLock
from tests.contract.facade import ThreadedLease

if TYPE_CHECKING:
    from collections.abc import Callable

METHODS = {"acquire", "release", "extend", "reacquire", "locked", "owned", "raise_token"}


def retries(flavour: str, times: int) -> dict[str, Any]:
    """Settings of a client that repeats a request so often."""
    module: Any = redis if flavour == "sync" else redis.asyncio
    return {
        "retry": module.retry.Retry(NoBackoff(), times),
        "retry_on_error": [redis.ConnectionError, redis.TimeoutError],
    }


class OneThread:
    """A sync lock whose methods run in a thread of its own, which is the one that holds it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.lock = self._pool.submit(make).result()

    def __getattr__(self, name: str) -> Any:
        if name not in METHODS:
            found = self._pool.submit(getattr, self.lock, name).result()
            return ThreadedLease(found) if name == "lease" else found

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self.run(lambda: getattr(self.lock, name)(*args, **kwargs))

        return call

    async def run(self, function: Callable[[], Any]) -> Any:
        """Call a function in the lock's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def __aenter__(self) -> Self:
        await self.run(self.lock.__enter__)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.run(lambda: self.lock.__exit__(*raised))

    def token(self) -> Any:
        return self._pool.submit(lambda: self.lock.local.token).result()

    def set_token(self, token: bytes) -> None:
        self._pool.submit(setattr, self.lock.local, "token", token).result()

    def end(self) -> None:
        self._pool.shutdown()


class Async:
    """An async lock, with the names of `OneThread`."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lock, name)

    async def __aenter__(self) -> Self:
        await self.lock.__aenter__()
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.lock.__aexit__(*raised)

    def token(self) -> Any:
        return self.lock.local.token

    def set_token(self, token: bytes) -> None:
        self.lock.local.token = token


class Locks:
    """Makes locks of one kind.

    Args:
        flavour: ``"sync"`` or ``"async"``.
        whose: ``"redis-py"`` or ``"fencing"``.
        url: Where Redis is.
        settings: For the client.
    """

    def __init__(self, flavour: str, whose: str, url: str, **settings: Any) -> None:
        self.flavour = flavour
        module: Any = redis if flavour == "sync" else redis.asyncio
        self.client = module.Redis.from_url(url, **settings)
        ours = FencedLock if flavour == "sync" else AsyncFencedLock
        self.lock_class: Any = ours if whose == "fencing" else None
        self._threads: list[OneThread] = []

    def __call__(self, name: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("lock_class", self.lock_class)
        if self.flavour == "async":
            return Async(self.client.lock(name, **kwargs))
        lock = OneThread(lambda: self.client.lock(name, **kwargs))
        self._threads.append(lock)
        return lock

    async def aclose(self) -> None:
        for thread in self._threads:
            thread.end()
        if self.flavour == "sync":
            self.client.close()
        else:
            await self.client.aclose()

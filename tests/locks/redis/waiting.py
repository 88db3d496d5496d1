"""Waiting for a lock: what a test begins, and what it sees of that on the server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    import redis


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

    async def all_queued(self, resources: set[str]) -> None:
        """Wait until somebody waits for each; others may work meanwhile, if they are many."""
        queues = [keys_of(self.namespace, resource)[2] for resource in resources]

        def waiting() -> bool:
            with self.client.pipeline(transaction=False) as pipeline:
                for queue in queues:
                    pipeline.zcard(queue)
                return all(pipeline.execute())

        async with asyncio.timeout(60):
            while not await asyncio.to_thread(waiting):
                pass

    def leftovers(self) -> list[bytes]:
        ends = b":lock", b":queue"
        return [key for key in self.client.scan_iter(f"{self.namespace}:*") if key.endswith(ends)]


@contextlib.asynccontextmanager
async def service(kind: str, url: str, namespace: str, **client: Any) -> AsyncIterator[Any]:
    if kind == "sync":
        with RedisLockService.from_url(url, namespace=namespace, **client) as locks:
            yield ThreadedLocks(locks)
    else:
        async with AsyncRedisLockService.from_url(url, namespace=namespace, **client) as locks:
            yield locks

"""Sync lock services behind the async interface, so that one suite serves both."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from fencing import connect, connect_async
from fencing.service import Acquisition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fencing.lease import Lease
    from fencing.lease.group import LeaseGroup
    from fencing.service import LockService
    from fencing.state import LockState

# asyncio's own pool has six threads on a small machine: waiters would keep them all from the
# holder who wants to release.
_threads = ThreadPoolExecutor(max_workers=64, thread_name_prefix="facade")


async def in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function in a thread."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, lambda: function(*args, **kwargs))


class ThreadedLease:
    """A sync lease whose methods run in a thread; everything else is the lease's own."""

    def __init__(self, lease: Lease) -> None:
        self.__dict__["lease"] = lease

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lease, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.lease, name, value)

    async def renew(self, ttl: float | None = None) -> None:
        await in_thread(self.lease.renew, ttl)

    async def release(self) -> None:
        await in_thread(self.lease.release)

    async def owned(self) -> bool:
        return await in_thread(self.lease.owned)

    async def locked(self) -> bool:
        return await in_thread(self.lease.locked)

    async def wait_lost(self, timeout: float | None = None) -> bool:
        return await in_thread(self.lease.wait_lost, timeout)

    async def __aenter__(self) -> Self:
        await in_thread(self.lease.__enter__)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await in_thread(self.lease.__exit__, *raised)


class ThreadedGroup(Sequence[ThreadedLease]):
    """A group of sync leases, likewise."""

    def __init__(self, group: LeaseGroup) -> None:
        self.group = group
        self.leases = [ThreadedLease(lease) for lease in group]

    def __getitem__(self, index: Any) -> Any:
        return self.leases[index]

    def __len__(self) -> int:
        return len(self.leases)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)

    async def renew(self, ttl: float | None = None) -> None:
        await in_thread(self.group.renew, ttl)

    async def release(self) -> None:
        await in_thread(self.group.release)

    async def __aenter__(self) -> Self:
        await in_thread(self.group.__enter__)
        return self

    async def __aexit__(self, *raised: object) -> None:
        await in_thread(self.group.__exit__, *raised)


class ThreadedLocks:
    """A sync lock service whose calls run in a thread."""

    def __init__(self, locks: LockService) -> None:
        self.locks = locks

    def acquire(self, *args: Any, **kwargs: Any) -> Acquisition:
        async def begin() -> Any:
            return ThreadedLease(await in_thread(self.locks.acquire, *args, **kwargs))

        return Acquisition(begin)

    def acquire_all(self, *args: Any, **kwargs: Any) -> Acquisition[Any]:
        async def begin() -> Any:
            return ThreadedGroup(await in_thread(self.locks.acquire_all, *args, **kwargs))

        return Acquisition(begin)

    async def try_acquire(self, *args: Any, **kwargs: Any) -> ThreadedLease | None:
        lease = await in_thread(self.locks.try_acquire, *args, **kwargs)
        return None if lease is None else ThreadedLease(lease)

    async def renew(self, lease: ThreadedLease, ttl: float) -> None:
        await in_thread(self.locks.renew, lease.lease, ttl)

    async def release(self, lease: ThreadedLease) -> None:
        await in_thread(self.locks.release, lease.lease)

    async def raise_token(self, lease: ThreadedLease, *, floor: int) -> None:
        await in_thread(self.locks.raise_token, lease.lease, floor=floor)

    async def inspect(self, resource: str) -> LockState:
        return await in_thread(self.locks.inspect, resource)

    async def locked(self, resource: str) -> bool:
        return await in_thread(self.locks.locked, resource)

    async def force_release(self, resource: str) -> bool:
        return await in_thread(self.locks.force_release, resource)

    async def scan(self, prefix: str = "") -> AsyncIterator[LockState]:
        # Only those that can scan are asked to, so it is no part of the protocol.
        service: Any = self.locks
        states = service.scan(prefix)
        while (state := await in_thread(next, states, None)) is not None:
            yield state


@contextlib.asynccontextmanager
async def service_at(kind: str, url: str, **settings: Any) -> AsyncIterator[Any]:
    """A "sync" or "async" service at an address, behind the asynchronous interface."""
    if kind == "sync":
        service: Any = connect(url, **settings)
        with service:
            yield ThreadedLocks(service)
    else:
        service = connect_async(url, **settings)
        async with service:
            yield service

"""Locks in Redis that issue fencing tokens: the sync and the async service, side by side.

::

    locks = RedisLockService(redis.Redis())
    with locks.acquire("account:42", ttl=10) as lease:
        ...                                  # lease.token is greater than every earlier one

What is asked, what an answer means and what happens when none comes is decided in
:mod:`fencing.locks.steps`, which also states the rules; here it is only performed. The two shells
differ in nothing but ``await``, except that an async clean-up is seen through even while its task
is being cancelled.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar

import redis
import redis.asyncio

from fencing.clock import now
from fencing.lease import AsyncLease, Lease, new_holder
from fencing.locks import steps
from fencing.locks.asking import Pause, Reply
from fencing.locks.clients import AsyncSibling, Sibling
from fencing.locks.scripts import check_namespace, keys_of
from fencing.locks.steps import Grant
from fencing.locks.trouble import REDIS_ERRORS, trouble_of
from fencing.request import AcquireRequest, check_floor, check_ttl
from fencing.service import Acquisition

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from types import TracebackType

    from fencing.locks.asking import Ask, Step, Steps
    from fencing.locks.clients import AnyAsyncClient, AnyClient

__all__ = ["AsyncRedisLockService", "RedisLockService"]

T = TypeVar("T")


class RedisLockService:
    """A lock service over one Redis, a Redis Cluster, or a primary that Sentinel watches.

    The client is not used itself, and not changed: the service opens connections of its own that
    are made like the client's (at most ``max_connections``), so that it can keep its callers'
    deadlines. A client's own retries and its decoding do not matter; its time-outs hold where they
    are shorter. See :mod:`fencing.locks.steps` for how often and how long Redis is tried.

    Threads may share a service; a forked child may use its copy.

    Args:
        client: A ``redis.Redis`` or ``redis.RedisCluster``.
        namespace: What the keys in Redis begin with. Services with different namespaces know
            nothing of each other.

    Raises:
        TypeError: The client is of another kind, an asyncio one for instance.
        ValueError: The namespace is empty, or holds a brace or NUL.
    """

    def __init__(self, client: AnyClient, *, namespace: str = "fencing") -> None:
        self.namespace = check_namespace(namespace)
        self._redis = Sibling(client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        **kwargs: Any,  # noqa: ANN401 - redis-py's
    ) -> Self:
        """A service for the Redis at an address.

        Args:
            url: As in ``redis://localhost:6379/0``, ``rediss://…`` or ``unix://…``.
            namespace: What the keys in Redis begin with.
            **kwargs: For ``redis.Redis.from_url``.
        """
        return cls(redis.Redis.from_url(url, **kwargs), namespace=namespace)

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        floor: int = 0,
    ) -> Lease:
        """Return a lease, or raise.

        Args:
            resource: What to protect: 1 to 512 bytes of UTF-8 without NUL.
            ttl: Length of the lease, in seconds, from 0.01 to 24 hours.
            blocking: Whether to wait while another holds it.
            blocking_timeout: Longest wait, in seconds; ``None``: for as long as it takes.
            owner: A label for people; default: host, process, thread.
            floor: The token will be greater than this.

        Raises:
            LockNotAcquiredError: Another holds it, and did until the time was up.
            LockServiceError: Redis could not be asked, or its keys are not ours.
            TypeError: An argument is of the wrong type; nothing was sent.
            ValueError: An argument is out of its range; nothing was sent.
        """
        request = AcquireRequest(
            resource=resource,
            ttl=ttl,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            owner=owner,
            floor=floor,
        )
        outcome = self._acquire(request)
        if isinstance(outcome, Lease):
            return outcome
        raise steps.not_acquired(request, outcome)

    def try_acquire(
        self, resource: str, *, ttl: float = 30.0, owner: str | None = None, floor: int = 0
    ) -> Lease | None:
        """Return a lease, or ``None`` at once when another holds it; see :meth:`acquire`."""
        request = AcquireRequest(
            resource=resource, ttl=ttl, blocking=False, owner=owner, floor=floor
        )
        outcome = self._acquire(request)
        return outcome if isinstance(outcome, Lease) else None

    def renew(self, lease: Lease, ttl: float) -> None:
        """Extend a lease to ``ttl`` seconds from now.

        Raises:
            LeaseLostError: It is not ours any more; it cannot be revived.
            LockServiceError: Redis could not be asked; the lease is as it was.
        """
        check_ttl(ttl)
        lease.raise_if_over()
        self._run(steps.renew(lease, ttl, started_at=now()), lease.resource)

    def release(self, lease: Lease) -> None:
        """Give a lease back; nothing can be done under it afterwards, whatever is raised.

        Raises:
            LeaseLostError: It had been lost before.
            LockServiceError: Redis could not be told; the lock ends by its ttl.
        """
        self._run(steps.release(lease, started_at=now()), lease.resource)

    def raise_token(self, lease: Lease, *, floor: int) -> None:
        """Give a lease that is still ours a new token, greater than ``floor``.

        Raises:
            FencingUsageError: The lease was admitted under its token; nothing was sent.
            LeaseLostError: It is not ours any more.
            LockServiceError: Redis could not be asked.
        """
        check_floor(floor)
        lease.raise_if_over()
        self._run(steps.raise_token(lease, floor, started_at=now()), lease.resource)

    def close(self) -> None:
        """Close the service's connections; another call opens them again."""
        self._redis.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _acquire(self, request: AcquireRequest) -> Lease | steps.Held:
        holder = new_holder()
        outcome = self._run(
            steps.acquire(request, holder=holder, started_at=now()), request.resource
        )
        if isinstance(outcome, Grant):
            return Lease(self, **_facts(request, holder, outcome))
        return outcome

    def _run(self, call: Steps[T], resource: str) -> T:
        keys = keys_of(self.namespace, resource)
        sent: Reply | float | None = None
        failure: BaseException | None = None
        while True:
            try:
                step = call.send(sent) if failure is None else call.throw(failure)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                sent = failure = None  # a traceback that holds itself would outlive the call
            try:
                sent = self._perform(step, keys)
            except BaseException as error:  # noqa: BLE001 - the core decides about every one
                failure = error

    def _perform(self, step: Step, keys: tuple[bytes, ...]) -> Reply | float:
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return now()
        asked_at = now()
        try:
            answer = self._redis.run(step.script, keys, _encoded(step), asked_at + step.within)
        except REDIS_ERRORS as error:
            raise trouble_of(error, at=now()) from error
        return Reply(_texts(answer), asked_at, now())


class AsyncRedisLockService:
    """:class:`RedisLockService` for asyncio, over a client of ``redis.asyncio``.

    Its connections belong to one event loop; close them with :meth:`aclose`, or use the service
    in ``async with``.
    """

    def __init__(self, client: AnyAsyncClient, *, namespace: str = "fencing") -> None:
        self.namespace = check_namespace(namespace)
        self._redis = AsyncSibling(client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        **kwargs: Any,  # noqa: ANN401 - redis-py's
    ) -> Self:
        """See :meth:`RedisLockService.from_url`."""
        return cls(redis.asyncio.Redis.from_url(url, **kwargs), namespace=namespace)

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        floor: int = 0,
    ) -> Acquisition:
        """See :meth:`RedisLockService.acquire`; to be awaited, or used in ``async with``.

        The arguments are checked by the call itself; nothing is sent before the ``await``.
        """
        request = AcquireRequest(
            resource=resource,
            ttl=ttl,
            blocking=blocking,
            blocking_timeout=blocking_timeout,
            owner=owner,
            floor=floor,
        )

        async def begin() -> AsyncLease:
            outcome = await self._acquire(request)
            if isinstance(outcome, AsyncLease):
                return outcome
            raise steps.not_acquired(request, outcome)

        return Acquisition(begin)

    async def try_acquire(
        self, resource: str, *, ttl: float = 30.0, owner: str | None = None, floor: int = 0
    ) -> AsyncLease | None:
        """See :meth:`RedisLockService.try_acquire`."""
        request = AcquireRequest(
            resource=resource, ttl=ttl, blocking=False, owner=owner, floor=floor
        )
        outcome = await self._acquire(request)
        return outcome if isinstance(outcome, AsyncLease) else None

    async def renew(self, lease: AsyncLease, ttl: float) -> None:
        """See :meth:`RedisLockService.renew`."""
        check_ttl(ttl)
        lease.raise_if_over()
        await self._run(steps.renew(lease, ttl, started_at=now()), lease.resource)

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`RedisLockService.release`."""
        await self._run(steps.release(lease, started_at=now()), lease.resource)

    async def raise_token(self, lease: AsyncLease, *, floor: int) -> None:
        """See :meth:`RedisLockService.raise_token`."""
        check_floor(floor)
        lease.raise_if_over()
        await self._run(steps.raise_token(lease, floor, started_at=now()), lease.resource)

    async def aclose(self) -> None:
        """Close the service's connections; another call opens them again."""
        await self._redis.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _acquire(self, request: AcquireRequest) -> AsyncLease | steps.Held:
        holder = new_holder()
        outcome = await self._run(
            steps.acquire(request, holder=holder, started_at=now()), request.resource
        )
        if isinstance(outcome, Grant):
            return AsyncLease(self, **_facts(request, holder, outcome))
        return outcome

    async def _run(self, call: Steps[T], resource: str) -> T:
        keys = keys_of(self.namespace, resource)
        sent: Reply | float | None = None
        failure: BaseException | None = None
        while True:
            try:
                step = call.send(sent) if failure is None else call.throw(failure)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            finally:
                sent = failure = None  # a traceback that holds itself would outlive the call
            try:
                work = self._perform(step, keys)
                sent = await (_see_through(work) if step.see_through else work)
            except BaseException as error:  # noqa: BLE001 - the core decides about every one
                failure = error

    async def _perform(self, step: Step, keys: tuple[bytes, ...]) -> Reply | float:
        if isinstance(step, Pause):
            await asyncio.sleep(step.seconds)
            return now()
        asked_at = now()
        try:
            answer = await self._redis.run(
                step.script, keys, _encoded(step), asked_at + step.within
            )
        except REDIS_ERRORS as error:
            raise trouble_of(error, at=now()) from error
        return Reply(_texts(answer), asked_at, now())


async def _see_through(work: Coroutine[Any, Any, T]) -> T:
    """Await work that a cancellation must not stop; pass the cancellation on afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()  # looked at, so that nobody complains that nobody did
        raise cancelled
    return task.result()


def _encoded(step: Ask) -> list[bytes]:
    # Bytes, because a client encodes a ``str`` in whatever encoding it was configured with.
    return [argument.encode() for argument in step.arguments]


def _texts(answer: object) -> list[str]:
    """An answer as a list of texts, whatever it is; the core judges it."""
    facts = answer if isinstance(answer, list) else [answer]
    return [
        fact.decode(errors="replace") if isinstance(fact, bytes) else str(fact) for fact in facts
    ]


def _facts(request: AcquireRequest, holder: str, grant: Grant) -> dict[str, Any]:
    return {
        "resource": request.resource,
        "token": grant.token,
        "holder": holder,
        "owner": request.owner_label,
        "ttl": request.ttl,
        "asked_at": grant.asked_at,
    }

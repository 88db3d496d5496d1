"""Locks in Redis that issue fencing tokens: the sync and the async service, side by side.

::

    locks = RedisLockService(redis.Redis())
    with locks.acquire("account:42", ttl=10) as lease:
        ...                                  # lease.token is greater than every earlier one

What is asked, what an answer means and what happens when none comes is decided in
:mod:`fencing.locks.redis.steps`, which also states the rules; :mod:`fencing.locks.redis.performing`
performs it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import redis
import redis.asyncio

from fencing.clock import now
from fencing.core.acquiring_all import AsyncSeveralLocks, SeveralLocks
from fencing.core.held import Held, enter_again, enter_again_async
from fencing.errors import FencingError, LockNotAcquiredError
from fencing.keepalive import aclose_keeper, close_keeper, keeper_of
from fencing.lease import AsyncLease, Lease, new_holder
from fencing.locks.redis import acquiring, looking, steps, together
from fencing.locks.redis.administration import Administration, AsyncAdministration
from fencing.locks.redis.asking import Ask
from fencing.locks.redis.clients import check_socket_timeout
from fencing.locks.redis.durability import COUNTER_SECONDS, REPLICA_SECONDS, Durability
from fencing.locks.redis.performing import AsyncPerformer, Performer
from fencing.locks.redis.scripts import RENEW, check_namespace
from fencing.request import AcquireRequest, AsyncAcquireRequest, check_floor, check_ttl
from fencing.service import Acquisition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from fencing.locks.redis.acquiring import Outcome
    from fencing.locks.redis.asking import Steps
    from fencing.locks.redis.clients import AnyAsyncClient, AnyClient
    from fencing.verification import ServiceVerification

__all__ = ["AsyncRedisLockService", "RedisLockService"]


class RedisLockService(SeveralLocks, Administration):
    """A lock service over one Redis, a Redis Cluster, or a primary that Sentinel watches.

    The client is not used itself, and not changed: the service opens connections of its own that
    are made like the client's (at most ``max_connections``), so that it can keep its callers'
    deadlines. A client's own retries and its decoding do not matter; its time-outs hold where they
    are shorter. See :mod:`fencing.locks.redis.steps` for how often and how long Redis is tried.

    Threads may share a service; a forked child may use its copy.

    Args:
        client: A ``redis.Redis`` or ``redis.RedisCluster``.
        namespace: What the keys in Redis begin with. Services with different namespaces know
            nothing of each other.
        counter_ttl: How long Redis keeps the counter of a resource that nobody acquires, in
            seconds, at least a day; default: 30 days. It applies to a service that a guard uses,
            for then the database has the mark, and to counters that only such services use;
            others are kept for ever, as all are with ``None``.
        replicas: How many replicas must have acknowledged a lock before ``acquire`` returns, and a
            renewal before the lease lasts longer (WAIT); default: none is waited for. A failover
            may still choose a replica that is not among them.
        replica_timeout: How long they are waited for, in seconds, 0.001 to 4, and shorter than
            the client's ``socket_timeout``; less where a deadline leaves less. With too few, the
            lock is given back and LockServiceError raised.

    Raises:
        TypeError: The client is of another kind, an asyncio one for instance.
        ValueError: The namespace is empty, or holds a brace or NUL; a number is out of its range.
    """

    def __init__(
        self,
        client: AnyClient,
        *,
        namespace: str = "fencing",
        counter_ttl: float | None = COUNTER_SECONDS,
        replicas: int = 0,
        replica_timeout: float = REPLICA_SECONDS,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self._durability = Durability(
            counter_ttl, replicas=replicas, replica_timeout=replica_timeout
        )
        self._redis = Performer(client, self.namespace)
        check_socket_timeout(client, self._durability)
        self._client = client
        self._held: Held[Lease] = Held()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        counter_ttl: float | None = COUNTER_SECONDS,
        replicas: int = 0,
        replica_timeout: float = REPLICA_SECONDS,
        **kwargs: Any,  # noqa: ANN401 - redis-py's
    ) -> Self:
        """A service for the Redis at an address.

        Args:
            url: As in ``redis://localhost:6379/0``, ``rediss://…`` or ``unix://…``.
            namespace: What the keys in Redis begin with.
            counter_ttl: As for the service.
            replicas: As for the service.
            replica_timeout: As for the service.
            **kwargs: For ``redis.Redis.from_url``.
        """
        return cls(
            redis.Redis.from_url(url, **kwargs),
            namespace=namespace,
            counter_ttl=counter_ttl,
            replicas=replicas,
            replica_timeout=replica_timeout,
        )

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        fair: bool = False,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        reentrant: bool = False,
        floor: int = 0,
    ) -> Lease:
        """Return a lease, or raise.

        Args:
            resource: What to protect: 1 to 512 bytes of UTF-8 without NUL.
            ttl: Length of the lease, in seconds, from 0.01 to 24 hours.
            blocking: Whether to wait while another holds it.
            blocking_timeout: Longest wait, in seconds; ``None``: for as long as it takes.
            owner: A label for people; default: host, process, thread.
            fair: Whether to wait in line, so that across all processes the one that asked first is
                first; default: one process's waiters are served in turn.
            keepalive: Whether the lease is renewed in the background, at a third of its ttl, until
                it is released, lost or dropped.
            max_lifetime: How long it lives at the longest, in seconds from its acquisition; only
                with ``keepalive``; ``None``: as long as it is renewed.
            on_lost: Called once with the lease when it is lost, in the background.
            reentrant: Whether a lease on the resource that this thread or task has is returned
                again, instead of waited for; it is released as often as it was acquired.
            floor: The token will be greater than this.

        Raises:
            LockNotAcquiredError: Another holds it, and did until the time was up.
            LockServiceError: Redis could not be asked, or its keys are not ours.
            TypeError: An argument is of the wrong type; nothing was sent.
            ValueError: An argument is out of its range; nothing was sent.
        """
        request = AcquireRequest(
            resource=resource, ttl=ttl, blocking=blocking, blocking_timeout=blocking_timeout,
            owner=owner, fair=fair, keepalive=keepalive, max_lifetime=max_lifetime,
            on_lost=on_lost, reentrant=reentrant, floor=floor,
        )  # fmt: skip
        return self._acquire(request)

    def try_acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        owner: str | None = None,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[Lease], object] | None = None,
        reentrant: bool = False,
        floor: int = 0,
    ) -> Lease | None:
        """Return a lease, or ``None`` at once when another holds it; see :meth:`acquire`."""
        request = AcquireRequest(
            resource=resource, ttl=ttl, blocking=False, owner=owner, keepalive=keepalive,
            max_lifetime=max_lifetime, on_lost=on_lost, reentrant=reentrant, floor=floor,
        )  # fmt: skip
        try:
            return self._acquire(request)
        except LockNotAcquiredError:
            return None

    def renew(self, lease: Lease, ttl: float) -> None:
        """Extend a lease to ``ttl`` seconds from now.

        Raises:
            LeaseLostError: It is not ours any more; it cannot be revived.
            LockServiceError: Redis could not be asked; the lease is as it was.
        """
        check_ttl(ttl)
        lease.raise_if_over()
        self._redis.perform(
            steps.renew(lease, ttl, started_at=now(), durability=self._durability),
            lease.resource,
        )

    def renew_many(
        self, leases: Sequence[tuple[Lease, float]], *, within: float
    ) -> list[FencingError | None]:
        """Renew leases together, in one pipeline, once; nothing is raised.

        Args:
            leases: Each with the ttl to extend it to, in seconds.
            within: How long all of it may take, in seconds.

        Returns:
            For each the error that :meth:`renew` would have raised; ``None``: it is renewed.
        """
        tokens = [lease.token for lease, _ in leases]
        asks = [
            (lease.resource, Ask(RENEW, steps.renewal_of(lease, ttl, self._durability), within))
            for lease, ttl in leases
        ]
        came = self._redis.perform_together(asks, within, self._durability.wait_within(within))
        return [
            steps.judge_renewal(lease, ttl, each, self._durability, token=token)
            for (lease, ttl), each, token in zip(leases, came, tokens, strict=True)
        ]

    def release(self, lease: Lease) -> None:
        """Give a lease back; nothing can be done under it afterwards, whatever is raised.

        Raises:
            LeaseLostError: It had been lost before.
            LockServiceError: Redis could not be told; the lock ends by its ttl.
        """
        self._redis.perform(steps.release(lease, started_at=now()), lease.resource)

    def raise_token(self, lease: Lease, *, floor: int) -> None:
        """Give a lease that is still ours a new token, greater than ``floor``.

        Raises:
            FencingUsageError: The lease was admitted under its token; nothing was sent.
            LeaseLostError: It is not ours any more.
            LockServiceError: Redis could not be asked.
        """
        check_floor(floor)
        lease.raise_if_over()
        self._redis.perform(
            steps.raise_token(lease, floor, started_at=now(), durability=self._durability),
            lease.resource,
        )

    def note_guarded(self) -> None:
        """Know that a guard uses this service, so that a database can reseed its counters.

        Guards call it. Do not acquire without the guard through the same service: the tokens of
        what no database has seen could start again (``counter_ttl``). Another service in the same
        namespace may, and then keeps the counters it uses for ever.
        """
        self._durability = replace(self._durability, guarded=True)

    def verify(self) -> ServiceVerification:
        """Look what weakens this service: settings, permissions and state of its servers.

        Reads only, over connections of its own, for at most 10 s.

        Raises:
            LockServiceError: A server could not be reached.
        """
        return looking.verify(self._client, self.namespace, replicas=self._durability.replicas)

    def close(self) -> None:
        """Close the service's connections; another call opens them again.

        Leases that are kept alive are no longer renewed.
        """
        close_keeper(self)
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

    def grant_all(
        self, requests: Sequence[AcquireRequest]
    ) -> list[Lease] | LockNotAcquiredError | None:
        """Grant several locks in one script, all or none, without waiting; for ``acquire_all``.

        Returns:
            The leases; or the error that says which one is held; ``None`` on a Redis Cluster,
            where one script cannot.
        """
        if not self._redis.spans:
            return None
        holders = [new_holder() for _ in requests]
        leases: list[Lease] = []
        try:
            outcome = self._redis.perform(
                together.acquire_all(
                    requests, holders=holders, started_at=now(), durability=self._durability
                ),
                requests[0].resource,
            )
            if isinstance(outcome, LockNotAcquiredError):
                return outcome
            for request, holder, grant in zip(requests, holders, outcome, strict=True):
                leases.append(Lease(self, **_facts(request, holder, grant)))
                self._begin(leases[-1], request)
            return leases  # noqa: TRY300 - as for a single one
        except FencingError:
            raise
        except BaseException:
            for lease in leases:
                lease.note_released()
            self._redis.perform(
                together.give_up(requests, holders, started_at=now()), requests[0].resource
            )
            raise

    def _begin(self, lease: Lease, request: AcquireRequest) -> None:
        self._held.note(lease)
        if request.is_kept_or_watched:
            keeper_of(lease).begin(lease, request)

    def _acquire(self, request: AcquireRequest) -> Lease:
        if request.reentrant and (again := enter_again(self._held, request)) is not None:
            return again
        holder = new_holder()
        lease: Lease | None = None
        try:
            outcome = self._ask_for(request, holder)
            if not isinstance(outcome, acquiring.Grant):
                raise acquiring.not_acquired(request, outcome)  # noqa: TRY301 - decided by the steps
            lease = Lease(self, **_facts(request, holder, outcome))
            self._begin(lease, request)
            if outcome.handed_for is not None:
                keeper_of(lease).confirm(lease)
            return lease  # noqa: TRY300 - until here, what interrupts us leaves no lock behind
        except FencingError:
            raise
        except BaseException:
            # A signal's exception between two lines of ours, of which the steps know nothing.
            if lease is not None:
                lease.note_released()
            self._redis.perform(
                acquiring.give_up(request, holder, started_at=now()), request.resource
            )
            raise

    def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(nonce: str | None = "") -> Steps[Outcome]:
            return acquiring.acquire(
                request,
                holder=holder,
                started_at=started_at,
                durability=self._durability,
                nonce=nonce,
            )

        if request.patience > 0:
            return self._redis.perform_waiting(
                call, request.resource, holder, in_line=not request.fair
            )
        return self._redis.perform(call(), request.resource)


class AsyncRedisLockService(AsyncSeveralLocks, AsyncAdministration):
    """:class:`RedisLockService` for asyncio, over a client of ``redis.asyncio``.

    Its connections belong to one event loop; close them with :meth:`aclose`, or use the service
    in ``async with``. After that loop has been closed, it begins anew in the next one.
    """

    def __init__(
        self,
        client: AnyAsyncClient,
        *,
        namespace: str = "fencing",
        counter_ttl: float | None = COUNTER_SECONDS,
        replicas: int = 0,
        replica_timeout: float = REPLICA_SECONDS,
    ) -> None:
        self.namespace = check_namespace(namespace)
        self._durability = Durability(
            counter_ttl, replicas=replicas, replica_timeout=replica_timeout
        )
        self._redis = AsyncPerformer(client, self.namespace)
        check_socket_timeout(client, self._durability)
        self._client = client
        self._held: Held[AsyncLease] = Held()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} namespace={self.namespace!r}>"

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        namespace: str = "fencing",
        counter_ttl: float | None = COUNTER_SECONDS,
        replicas: int = 0,
        replica_timeout: float = REPLICA_SECONDS,
        **kwargs: Any,  # noqa: ANN401 - redis-py's
    ) -> Self:
        """See :meth:`RedisLockService.from_url`."""
        return cls(
            redis.asyncio.Redis.from_url(url, **kwargs),
            namespace=namespace,
            counter_ttl=counter_ttl,
            replicas=replicas,
            replica_timeout=replica_timeout,
        )

    def acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        fair: bool = False,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
        cancel_on_loss: bool = False,
        reentrant: bool = False,
        floor: int = 0,
    ) -> Acquisition:
        """See :meth:`RedisLockService.acquire`; to be awaited, or used in ``async with``.

        The arguments are checked by the call itself; nothing is sent before the ``await``.
        """
        request = AsyncAcquireRequest(
            resource=resource, ttl=ttl, blocking=blocking, blocking_timeout=blocking_timeout,
            owner=owner, fair=fair, keepalive=keepalive, max_lifetime=max_lifetime,
            on_lost=on_lost, cancel_on_loss=cancel_on_loss, reentrant=reentrant, floor=floor,
        )  # fmt: skip

        async def begin() -> AsyncLease:
            return await self._acquire(request)

        return Acquisition(begin)

    async def try_acquire(
        self,
        resource: str,
        *,
        ttl: float = 30.0,
        owner: str | None = None,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[AsyncLease], object] | None = None,
        cancel_on_loss: bool = False,
        reentrant: bool = False,
        floor: int = 0,
    ) -> AsyncLease | None:
        """See :meth:`RedisLockService.try_acquire`."""
        request = AsyncAcquireRequest(
            resource=resource, ttl=ttl, blocking=False, owner=owner, keepalive=keepalive,
            max_lifetime=max_lifetime, on_lost=on_lost, cancel_on_loss=cancel_on_loss,
            reentrant=reentrant, floor=floor,
        )  # fmt: skip
        try:
            return await self._acquire(request)
        except LockNotAcquiredError:
            return None

    async def renew(self, lease: AsyncLease, ttl: float) -> None:
        """See :meth:`RedisLockService.renew`."""
        check_ttl(ttl)
        lease.raise_if_over()
        await self._redis.perform(
            steps.renew(lease, ttl, started_at=now(), durability=self._durability),
            lease.resource,
        )

    async def renew_many(
        self, leases: Sequence[tuple[AsyncLease, float]], *, within: float
    ) -> list[FencingError | None]:
        """See :meth:`RedisLockService.renew_many`."""
        tokens = [lease.token for lease, _ in leases]
        asks = [
            (lease.resource, Ask(RENEW, steps.renewal_of(lease, ttl, self._durability), within))
            for lease, ttl in leases
        ]
        came = await self._redis.perform_together(
            asks, within, self._durability.wait_within(within)
        )
        return [
            steps.judge_renewal(lease, ttl, each, self._durability, token=token)
            for (lease, ttl), each, token in zip(leases, came, tokens, strict=True)
        ]

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`RedisLockService.release`."""
        await self._redis.perform(steps.release(lease, started_at=now()), lease.resource)

    async def raise_token(self, lease: AsyncLease, *, floor: int) -> None:
        """See :meth:`RedisLockService.raise_token`."""
        check_floor(floor)
        lease.raise_if_over()
        await self._redis.perform(
            steps.raise_token(lease, floor, started_at=now(), durability=self._durability),
            lease.resource,
        )

    def note_guarded(self) -> None:
        """See :meth:`RedisLockService.note_guarded`."""
        self._durability = replace(self._durability, guarded=True)

    async def verify(self) -> ServiceVerification:
        """See :meth:`RedisLockService.verify`."""
        return await looking.averify(
            self._client, self.namespace, replicas=self._durability.replicas
        )

    async def aclose(self) -> None:
        """See :meth:`RedisLockService.close`."""
        await aclose_keeper(self)
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

    async def grant_all(
        self, requests: Sequence[AcquireRequest]
    ) -> list[AsyncLease] | LockNotAcquiredError | None:
        """See :meth:`RedisLockService.grant_all`."""
        if not self._redis.spans:
            return None
        holders = [new_holder() for _ in requests]
        leases: list[AsyncLease] = []
        try:
            outcome = await self._redis.perform(
                together.acquire_all(
                    requests, holders=holders, started_at=now(), durability=self._durability
                ),
                requests[0].resource,
            )
            if isinstance(outcome, LockNotAcquiredError):
                return outcome
            for request, holder, grant in zip(requests, holders, outcome, strict=True):
                leases.append(AsyncLease(self, **_facts(request, holder, grant)))
                self._begin(leases[-1], request)
            return leases  # noqa: TRY300 - as for a single one
        except FencingError:
            raise
        except Exception:
            for lease in leases:
                lease.note_released()
            await self._redis.perform(
                together.give_up(requests, holders, started_at=now()), requests[0].resource
            )
            raise

    def _begin(self, lease: AsyncLease, request: AcquireRequest) -> None:
        self._held.note(lease)
        if request.is_kept_or_watched:
            keeper_of(lease).begin(lease, request)

    async def _acquire(self, request: AcquireRequest) -> AsyncLease:
        if (
            request.reentrant
            and (again := await enter_again_async(self._held, request)) is not None
        ):
            return again
        holder = new_holder()
        lease: AsyncLease | None = None
        try:
            outcome = await self._ask_for(request, holder)
            if not isinstance(outcome, acquiring.Grant):
                raise acquiring.not_acquired(request, outcome)  # noqa: TRY301 - decided by the steps
            lease = AsyncLease(self, **_facts(request, holder, outcome))
            self._begin(lease, request)
            if outcome.handed_for is not None:
                keeper_of(lease).confirm(lease)
            return lease  # noqa: TRY300 - until here, what interrupts us leaves no lock behind
        except FencingError:
            raise
        except Exception:
            # A cancellation comes only where the steps see it; they have cleaned up after it.
            if lease is not None:
                lease.note_released()
            await self._redis.perform(
                acquiring.give_up(request, holder, started_at=now()), request.resource
            )
            raise

    async def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        started_at = now()

        def call(nonce: str | None = "") -> Steps[Outcome]:
            return acquiring.acquire(
                request,
                holder=holder,
                started_at=started_at,
                durability=self._durability,
                nonce=nonce,
            )

        if request.patience > 0:
            return await self._redis.perform_waiting(
                call, request.resource, holder, in_line=not request.fair
            )
        return await self._redis.perform(call(), request.resource)


def _facts(request: AcquireRequest, holder: str, grant: acquiring.Grant) -> dict[str, Any]:
    return {
        "resource": request.resource,
        "token": grant.token,
        "holder": holder,
        "owner": request.owner_label,
        "ttl": request.ttl,
        "asked_at": grant.asked_at,
        "handed_for": grant.handed_for,
    }

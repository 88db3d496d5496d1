"""``acquire_all``, of lock services and of guards: the sync and the async half."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fencing.core.performing import perform, perform_async
from fencing.core.several import acquire_several, requests_for
from fencing.keepalive import watch
from fencing.lease.group import AsyncLeaseGroup, LeaseGroup
from fencing.request import AcquireRequest, AsyncAcquireRequest
from fencing.service import Acquisition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from fencing.core.plan import PlanOfAll
    from fencing.lease import AsyncLease, Lease
    from fencing.service import AsyncLockService, LockService

__all__ = ["AcquiresAll", "AsyncAcquiresAll", "AsyncSeveralLocks", "SeveralLocks"]


class AcquiresAll:
    """For what can acquire one lease, so that it can acquire several."""

    def acquire_all(
        self,
        resources: Iterable[str],
        *,
        ttl: float = 30.0,
        blocking: bool = True,
        blocking_timeout: float | None = None,
        owner: str | None = None,
        fair: bool = False,
        keepalive: bool = False,
        max_lifetime: float | None = None,
        on_lost: Callable[[Lease], object] | None = None,
    ) -> LeaseGroup:
        """Return leases on several resources, all or none; they have been acquired then.

        Nobody who acquires them in another order waits for us while we wait for him. Held
        meanwhile are only resources that were waited for before; others stay free. A guard's
        leases are admitted, each in every engine's database.

        Args:
            resources: What to protect: names, each once, 1 to 1000 of them.
            ttl: Length of the leases, in seconds, from 0.01 to 24 hours. At least half of it is
                left of each when they are handed out.
            blocking: Whether to wait while another holds one of them.
            blocking_timeout: Longest wait, in seconds, for all of them together; ``None``: for as
                long as it takes.
            owner: A label for people; default: host, process, thread.
            fair: As in ``acquire``, like the following.
            keepalive: Whether the leases are renewed in the background.
            max_lifetime: How long they live at the longest then, in seconds.
            on_lost: Called once with each lease that is lost.

        Returns:
            The leases, in the order of ``resources``; a context manager that releases all.

        Raises:
            LockNotAcquiredError: One was not to be had in time (``resource``); none is held.
            LockServiceError: The lock service could not be asked.
            TypeError: An argument is of the wrong type; nothing was sent.
            ValueError: There is no resource, or one twice, or more than 1000; or an argument is
                out of its range. Nothing was sent.
        """
        requests = requests_for(
            AcquireRequest, resources, ttl=ttl, blocking=blocking,
            blocking_timeout=blocking_timeout, owner=owner, fair=fair, keepalive=keepalive,
            max_lifetime=max_lifetime, on_lost=on_lost,
        )  # fmt: skip

        def hand_out(leases: list[Lease]) -> LeaseGroup:
            each = zip(requests, leases, strict=True)
            return LeaseGroup([self._handing_out(request)(lease) for request, lease in each])

        return perform(self._plan_all(requests), self._grants(), hand_out)

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        raise NotImplementedError

    def _grants(self) -> LockService:
        raise NotImplementedError

    def _handing_out(self, request: AcquireRequest) -> Callable[[Lease | None], Lease]:
        raise NotImplementedError


class AsyncAcquiresAll:
    """:class:`AcquiresAll` for asyncio."""

    def acquire_all(
        self,
        resources: Iterable[str],
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
    ) -> Acquisition[AsyncLeaseGroup]:
        """See :meth:`AcquiresAll.acquire_all`; ``await`` it, or use it in ``async with``."""
        requests = requests_for(
            AsyncAcquireRequest, resources, ttl=ttl, blocking=blocking,
            blocking_timeout=blocking_timeout, owner=owner, fair=fair, keepalive=keepalive,
            max_lifetime=max_lifetime, on_lost=on_lost, cancel_on_loss=cancel_on_loss,
        )  # fmt: skip

        def hand_out(leases: list[AsyncLease]) -> AsyncLeaseGroup:
            each = zip(requests, leases, strict=True)
            return AsyncLeaseGroup([self._handing_out(request)(lease) for request, lease in each])

        async def begin() -> AsyncLeaseGroup:
            return await perform_async(self._plan_all(requests), self._grants(), hand_out)

        return Acquisition(begin)

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        raise NotImplementedError

    def _grants(self) -> AsyncLockService:
        raise NotImplementedError

    def _handing_out(self, request: AcquireRequest) -> Callable[[AsyncLease | None], AsyncLease]:
        raise NotImplementedError


class SeveralLocks(AcquiresAll):
    """For lock services, by what they have besides."""

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        return acquire_several(requests, ())

    def _grants(self) -> LockService:
        return cast("LockService", self)

    def _handing_out(self, request: AcquireRequest) -> Callable[[Lease | None], Lease]:
        def hand_out(lease: Lease | None) -> Lease:
            assert lease is not None  # noqa: S101 - a plan for several returns leases, or raises
            if request.is_kept_or_watched:
                watch(lease, request)
            return lease

        return hand_out


class AsyncSeveralLocks(AsyncAcquiresAll):
    """:class:`SeveralLocks` for asyncio."""

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        return acquire_several(requests, ())

    def _grants(self) -> AsyncLockService:
        return cast("AsyncLockService", self)

    def _handing_out(self, request: AcquireRequest) -> Callable[[AsyncLease | None], AsyncLease]:
        def hand_out(lease: AsyncLease | None) -> AsyncLease:
            assert lease is not None  # noqa: S101 - a plan for several returns leases, or raises
            if request.is_kept_or_watched:
                watch(lease, request)
            return lease

        return hand_out

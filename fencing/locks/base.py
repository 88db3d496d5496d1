"""What every lock service has in common: the sync and the async half, side by side.

A lock service supplies how a lock is granted, renewed, given back, looked at and taken away; here
are the arguments and their checks, re-entry, keepalive, and what an interrupt leaves behind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Self, TypeVar

from fencing.core.acquiring_all import AsyncSeveralLocks, SeveralLocks
from fencing.core.held import Held, enter_again, enter_again_async
from fencing.errors import FencingError, LockNotAcquiredError
from fencing.keepalive import aclose_keeper, close_keeper, keeper_of
from fencing.lease import AsyncLease, Lease, new_holder
from fencing.locks.outcome import Grant, not_acquired
from fencing.request import (
    AcquireRequest,
    AsyncAcquireRequest,
    check_floor,
    check_prefix,
    check_resource,
    check_ttl,
)
from fencing.service import Acquisition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from types import TracebackType

    from fencing.lease import AsyncGrantor, Grantor
    from fencing.locks.outcome import Outcome
    from fencing.state import LockState

__all__ = ["AsyncBaseLockService", "BaseLockService", "lease_of"]

LeaseT = TypeVar("LeaseT", Lease, AsyncLease)


class BaseLockService(SeveralLocks):
    """A lock service, but for how its locks are granted, renewed, given back and looked at."""

    def __init__(self) -> None:
        self._held: Held[Lease] = Held()

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
                again, instead of waited for; it is released as often as it was acquired. Of what
                is asked for with it, ``on_lost`` is called besides the others, ``ttl`` is the least
                that is left, and ``keepalive`` holds until the lease is released.
            floor: The token will be greater than this.

        Raises:
            FencingUsageError: A lease that is returned again has no such ``max_lifetime`` or
                ``cancel_on_loss``.
            LockNotAcquiredError: Another holds it, and did until the time was up.
            LockServiceError: The lock service could not be asked, or what it keeps is not ours.
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
            LockServiceError: The lock service could not be asked; the lease is as it was.
        """
        check_ttl(ttl)
        lease.raise_if_over()
        self._renew(lease, ttl)

    def release(self, lease: Lease) -> None:
        """Give a lease back; nothing can be done under it afterwards, whatever is raised.

        Raises:
            LeaseLostError: It had been lost before.
            LockServiceError: The lock service could not be told; the lock ends by its ttl.
        """
        raise NotImplementedError

    def raise_token(self, lease: Lease, *, floor: int) -> None:
        """Give a lease that is still ours a new token, greater than ``floor``.

        Raises:
            FencingUsageError: The lease was admitted under its token; nothing was sent.
            LeaseLostError: It is not ours any more.
            LockServiceError: The lock service could not be asked.
        """
        check_floor(floor)
        lease.raise_if_over()
        self._raise_token(lease, floor)

    def inspect(self, resource: str) -> LockState:
        """Say who holds a resource, under which token and for how long, and who waits for it.

        Args:
            resource: What is protected: 1 to 512 bytes of UTF-8 without NUL.

        Raises:
            LockServiceError: The lock service could not be asked.
            TypeError: The resource is not a ``str``; nothing was sent.
            ValueError: It cannot name one; nothing was sent.
        """
        return self._inspect(check_resource(resource))

    def locked(self, resource: str) -> bool:
        """Whether anybody holds a resource; see :meth:`inspect`."""
        return self.inspect(resource).held

    def force_release(self, resource: str) -> bool:
        """Take a lock from whoever holds it: an administrator's means, not a program's.

        Its holder is not told. He finds out when he renews the lease or releases it, and a guarded
        table refuses him as soon as the next holder is admitted, whose token is greater. Until
        then he may still write; to shut him out at once, raise the fence (``fencing raise``).

        Args:
            resource: What is protected: 1 to 512 bytes of UTF-8 without NUL.

        Returns:
            Whether it was taken from somebody.

        Raises:
            LockServiceError: The lock service could not be asked, or what is there is no lock of
                ours.
            TypeError: The resource is not a ``str``; nothing was sent.
            ValueError: It cannot name one; nothing was sent.
        """
        return self._force_release(check_resource(resource))

    def scan(self, prefix: str = "") -> Iterator[LockState]:
        """Iterate over the locks that are held in this service's namespace, in no order.

        The lock service is asked page by page, so that it can serve others in between. A lock that
        was held all the time is told once; one that was acquired or released meanwhile may be told
        or not.

        Args:
            prefix: Only resources whose names begin so; default: all.

        Raises:
            LockServiceError: The lock service could not be asked; also in the course of the
                iteration.
            TypeError: The prefix is not a ``str``.
            ValueError: It cannot be encoded as UTF-8.
        """
        return self._scan(check_prefix(prefix))

    def close(self) -> None:
        """Close the service's connections; another call opens them again.

        Leases that are kept alive are no longer renewed.
        """
        close_keeper(self)
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _acquire(self, request: AcquireRequest) -> Lease:
        if request.reentrant and (again := enter_again(self._held, request)) is not None:
            return again
        holder = new_holder()
        lease: Lease | None = None
        try:
            outcome = self._ask_for(request, holder)
            if not isinstance(outcome, Grant):
                raise not_acquired(request, outcome)  # noqa: TRY301 - decided by the service
            lease = lease_of(Lease, self, request, holder, outcome)
            self._begin(lease, request)
            if outcome.handed_for is not None:
                keeper_of(lease).confirm(lease)
            return lease  # noqa: TRY300 - until here, what interrupts us leaves no lock behind
        except FencingError:
            raise
        except BaseException:
            # A signal's exception between two lines of ours, of which the service knows nothing.
            if lease is not None:
                lease.note_released()
            self._give_up(request, holder)
            raise

    def _begin(self, lease: Lease, request: AcquireRequest) -> None:
        self._held.note(lease)
        if request.is_kept_or_watched:
            keeper_of(lease).begin(lease, request)

    # What a lock service supplies.

    def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        """Ask for a lock, and wait for it as long as the request says.

        What it raises leaves no lock behind, but for an exception that is not of this package and
        came between two of its lines: then :meth:`_give_up` is called.
        """
        raise NotImplementedError

    def _give_up(self, request: AcquireRequest, holder: str) -> None:
        """Release what this acquisition may hold, as far as possible; raise nothing."""
        raise NotImplementedError

    def _renew(self, lease: Lease, ttl: float) -> None:
        raise NotImplementedError

    def _raise_token(self, lease: Lease, floor: int) -> None:
        raise NotImplementedError

    def _inspect(self, resource: str) -> LockState:
        raise NotImplementedError

    def _force_release(self, resource: str) -> bool:
        raise NotImplementedError

    def _scan(self, prefix: str) -> Iterator[LockState]:
        raise NotImplementedError

    def _close(self) -> None:
        raise NotImplementedError


class AsyncBaseLockService(AsyncSeveralLocks):
    """:class:`BaseLockService` for asyncio."""

    def __init__(self) -> None:
        self._held: Held[AsyncLease] = Held()

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
        """See :meth:`BaseLockService.acquire`; to be awaited, or used in ``async with``.

        The arguments are checked by the call itself; nothing is sent before the ``await``.
        ``cancel_on_loss`` has the body of the ``async with`` cancelled when the lease is lost.
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
        """See :meth:`BaseLockService.try_acquire`."""
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
        """See :meth:`BaseLockService.renew`."""
        check_ttl(ttl)
        lease.raise_if_over()
        await self._renew(lease, ttl)

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`BaseLockService.release`."""
        raise NotImplementedError

    async def raise_token(self, lease: AsyncLease, *, floor: int) -> None:
        """See :meth:`BaseLockService.raise_token`."""
        check_floor(floor)
        lease.raise_if_over()
        await self._raise_token(lease, floor)

    async def inspect(self, resource: str) -> LockState:
        """See :meth:`BaseLockService.inspect`."""
        return await self._inspect(check_resource(resource))

    async def locked(self, resource: str) -> bool:
        """See :meth:`BaseLockService.locked`."""
        return (await self.inspect(resource)).held

    async def force_release(self, resource: str) -> bool:
        """See :meth:`BaseLockService.force_release`."""
        return await self._force_release(check_resource(resource))

    def scan(self, prefix: str = "") -> AsyncIterator[LockState]:
        """See :meth:`BaseLockService.scan`; for ``async for``."""
        return self._scan(check_prefix(prefix))

    async def aclose(self) -> None:
        """See :meth:`BaseLockService.close`."""
        await aclose_keeper(self)
        await self._close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

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
            if not isinstance(outcome, Grant):
                raise not_acquired(request, outcome)  # noqa: TRY301 - decided by the service
            lease = lease_of(AsyncLease, self, request, holder, outcome)
            self._begin(lease, request)
            if outcome.handed_for is not None:
                keeper_of(lease).confirm(lease)
            return lease  # noqa: TRY300 - until here, what interrupts us leaves no lock behind
        except FencingError:
            raise
        except Exception:
            # A cancellation comes only where the service sees it; it has cleaned up after it.
            if lease is not None:
                lease.note_released()
            await self._give_up(request, holder)
            raise

    def _begin(self, lease: AsyncLease, request: AcquireRequest) -> None:
        self._held.note(lease)
        if request.is_kept_or_watched:
            keeper_of(lease).begin(lease, request)

    # What a lock service supplies; see BaseLockService.

    async def _ask_for(self, request: AcquireRequest, holder: str) -> Outcome:
        raise NotImplementedError

    async def _give_up(self, request: AcquireRequest, holder: str) -> None:
        raise NotImplementedError

    async def _renew(self, lease: AsyncLease, ttl: float) -> None:
        raise NotImplementedError

    async def _raise_token(self, lease: AsyncLease, floor: int) -> None:
        raise NotImplementedError

    async def _inspect(self, resource: str) -> LockState:
        raise NotImplementedError

    async def _force_release(self, resource: str) -> bool:
        raise NotImplementedError

    def _scan(self, prefix: str) -> AsyncIterator[LockState]:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError


def lease_of(
    kind: type[LeaseT],
    service: Grantor | AsyncGrantor,
    request: AcquireRequest,
    holder: str,
    grant: Grant,
) -> LeaseT:
    """What was granted, as a lease."""
    return kind(
        service,
        resource=request.resource,
        token=grant.token,
        holder=grant.holder or holder,
        owner=request.owner_label,
        ttl=request.ttl,
        asked_at=grant.asked_at,
        handed_for=grant.handed_for,
        asked_again=grant.repeated,
        place=grant.place,
        admitted_in=grant.admitted_in,
    )

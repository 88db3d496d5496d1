"""A lock service that is everybody's enemy: it grants everything to everybody, under any token.

It has the whole protocol of :mod:`fencing.service`, and keeps none of its promises: leases overlap,
tokens repeat and go back, renewals succeed that should not, tokens are not raised when they should
be, trust lasts far too long, and what was released may not have been. What it answers is decided in
:mod:`fencing.torture.lies`. It stays in its worker's process, as it has nothing to coordinate.

Only two things it does not touch, as no lock service can: a lease's nonce, which is drawn by the
process that asks, and a lease that was admitted, whose token is final.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, Self

from fencing.clock import now
from fencing.core.acquiring_all import AsyncSeveralLocks, SeveralLocks
from fencing.errors import LeaseLostError, LockNotAcquiredError, LockServiceError
from fencing.keepalive import aclose_keeper, close_keeper, keeper_of
from fencing.lease import AsyncLease, BaseLease, Lease, new_holder
from fencing.request import AcquireRequest, AsyncAcquireRequest, check_floor
from fencing.service import Acquisition
from fencing.state import LockState
from fencing.torture.lies import Answer, Grant, Lies

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

__all__ = ["Adversary", "AsyncAdversary"]


class Adversary(SeveralLocks):
    """A :class:`~fencing.service.LockService` without any promise.

    Args:
        seed: Of what it answers.
    """

    def __init__(self, seed: int) -> None:
        self._lies = Lies(seed)

    def acquire(self, resource: str, **options: Any) -> Lease:  # noqa: ANN401 - the protocol's
        """A lease at once, or an error; see :class:`fencing.service.LockService`."""
        return self._grant(AcquireRequest(resource=resource, **options))

    def try_acquire(self, resource: str, **options: Any) -> Lease | None:  # noqa: ANN401 - as above
        """A lease at once; or ``None``, as if another held it."""
        try:
            return self._grant(AcquireRequest(resource=resource, blocking=False, **options))
        except LockNotAcquiredError:
            return None

    def grant_all(self, requests: Sequence[AcquireRequest]) -> list[Lease] | LockNotAcquiredError:
        """Grant several; or say that one of them is another's."""
        try:
            return [self._grant(request) for request in requests]
        except LockNotAcquiredError as error:
            return error

    def renew(self, lease: Lease, ttl: float) -> None:
        """Say that a lease was extended, and for long."""
        _believe(lease, self._lies.renew())
        lease.note_renewed(asked_at=now() + ttl * self._lies.ahead(), ttl=ttl)

    def release(self, lease: Lease) -> None:
        """Say something of a release."""
        _settle(lease, self._lies.release())

    def raise_token(self, lease: Lease, *, floor: int) -> None:
        """Give a lease another token, which may be the same, or below the floor."""
        _retoken(lease, self._lies.raise_token(lease.resource, check_floor(floor), lease.token))

    def inspect(self, resource: str) -> LockState:
        """Say something of a resource."""
        return LockState(resource=resource, held=self._lies.look())

    def locked(self, resource: str) -> bool:
        """Say something of a resource."""
        return self.inspect(resource).held

    def force_release(self, resource: str) -> bool:  # noqa: ARG002 - the protocol's
        """Do nothing, and say something."""
        return self._lies.look()

    def close(self) -> None:
        """No longer keep alive what it has granted."""
        close_keeper(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _grant(self, request: AcquireRequest) -> Lease:
        lease = Lease(self, **_facts(request, self._lies.grant(request.resource, request.floor)))
        if request.is_kept_or_watched:
            keeper_of(lease).begin(lease, request)
        return lease


class AsyncAdversary(AsyncSeveralLocks):
    """:class:`Adversary` for asyncio."""

    def __init__(self, seed: int) -> None:
        self._lies = Lies(seed)

    def acquire(self, resource: str, **options: Any) -> Acquisition:  # noqa: ANN401 - the protocol's
        """See :meth:`Adversary.acquire`."""
        request = AsyncAcquireRequest(resource=resource, **options)

        async def begin() -> AsyncLease:
            return self._grant(request)

        return Acquisition(begin)

    async def try_acquire(self, resource: str, **options: Any) -> AsyncLease | None:  # noqa: ANN401 - as above
        """See :meth:`Adversary.try_acquire`."""
        try:
            return self._grant(AsyncAcquireRequest(resource=resource, blocking=False, **options))
        except LockNotAcquiredError:
            return None

    async def grant_all(
        self, requests: Sequence[AcquireRequest]
    ) -> list[AsyncLease] | LockNotAcquiredError:
        """See :meth:`Adversary.grant_all`."""
        try:
            return [self._grant(request) for request in requests]
        except LockNotAcquiredError as error:
            return error

    async def renew(self, lease: AsyncLease, ttl: float) -> None:
        """See :meth:`Adversary.renew`."""
        _believe(lease, self._lies.renew())
        lease.note_renewed(asked_at=now() + ttl * self._lies.ahead(), ttl=ttl)

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`Adversary.release`."""
        _settle(lease, self._lies.release())

    async def raise_token(self, lease: AsyncLease, *, floor: int) -> None:
        """See :meth:`Adversary.raise_token`."""
        _retoken(lease, self._lies.raise_token(lease.resource, check_floor(floor), lease.token))

    async def inspect(self, resource: str) -> LockState:
        """See :meth:`Adversary.inspect`."""
        return LockState(resource=resource, held=self._lies.look())

    async def locked(self, resource: str) -> bool:
        """See :meth:`Adversary.locked`."""
        return (await self.inspect(resource)).held

    async def force_release(self, resource: str) -> bool:  # noqa: ARG002 - the protocol's
        """See :meth:`Adversary.force_release`."""
        return self._lies.look()

    async def aclose(self) -> None:
        """See :meth:`Adversary.close`."""
        await aclose_keeper(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _grant(self, request: AcquireRequest) -> AsyncLease:
        lease = AsyncLease(
            self, **_facts(request, self._lies.grant(request.resource, request.floor))
        )
        if request.is_kept_or_watched:
            keeper_of(lease).begin(lease, request)
        return lease


# What an answer does to a lease, with asyncio or without.


def _facts(request: AcquireRequest, answer: Grant | Answer) -> dict[str, Any]:
    if answer is Answer.LOST:
        message = f"{request.resource!r} is another's, the adversary says"
        raise LockNotAcquiredError(message, resource=request.resource)
    if isinstance(answer, Answer):
        raise _unreachable(request.resource)
    return {
        "resource": request.resource,
        "token": answer.token,
        "holder": new_holder(),
        "owner": request.owner_label,
        "ttl": request.ttl,
        "asked_at": now() + answer.ahead * request.ttl,
    }


def _believe(lease: BaseLease, answer: Answer) -> None:
    if answer is Answer.LOST:
        _lose(lease)
    if answer is Answer.UNREACHABLE:
        raise _unreachable(lease.resource)


def _settle(lease: BaseLease, answer: Answer) -> None:
    if answer is not Answer.FORGOTTEN:
        lease.note_released()
    if answer is Answer.LOST:
        raise lease.was_lost()
    if answer is Answer.UNREACHABLE:
        raise _unreachable(lease.resource)


def _retoken(lease: BaseLease, answer: int | Answer) -> None:
    if answer is Answer.LOST:
        _lose(lease)
    if isinstance(answer, Answer):
        raise _unreachable(lease.resource)
    lease.note_token(answer)


def _lose(lease: BaseLease) -> NoReturn:
    lease.note_lost()
    raise LeaseLostError(
        f"the lease on {lease.resource!r} is another's, the adversary says",
        resource=lease.resource, token=lease.token,
    )  # fmt: skip


def _unreachable(resource: str) -> LockServiceError:
    return LockServiceError("the adversary does not answer", resource=resource)

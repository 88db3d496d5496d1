"""A lease and its asyncio twin, side by side."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, NoReturn, Protocol, Self

from fencing.cancelling import CancelledBlock
from fencing.clock import now
from fencing.errors import FencingError, LeaseLostError, LockServiceError
from fencing.interrupts import begins_in_its_try
from fencing.lease.base import BaseLease
from fencing.lease.ending import AsyncEnding, Ending
from fencing.lease.trust import trust_ends
from fencing.request import check_ttl

if TYPE_CHECKING:
    from types import TracebackType

    from fencing.state import LockState

__all__ = ["AsyncGrantor", "AsyncLease", "Grantor", "Lease"]

_Failure = LeaseLostError | LockServiceError


class Grantor(Protocol):
    """What a lease needs of the lock service that has granted it."""

    def renew(self, lease: Lease, ttl: float) -> None:
        """Extend a lease to ``ttl`` seconds from now."""

    def release(self, lease: Lease) -> None:
        """Take a lease back."""

    def raise_token(self, lease: Lease, *, floor: int) -> None:
        """Give a lease that is still ours a new token, greater than ``floor``."""

    def inspect(self, resource: str) -> LockState:
        """Say who holds a resource, under which token and for how long."""


class AsyncGrantor(Protocol):
    """:class:`Grantor` for asyncio."""

    async def renew(self, lease: AsyncLease, ttl: float) -> None:
        """See :meth:`Grantor.renew`."""

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`Grantor.release`."""

    async def raise_token(self, lease: AsyncLease, *, floor: int) -> None:
        """See :meth:`Grantor.raise_token`."""

    async def inspect(self, resource: str) -> LockState:
        """See :meth:`Grantor.inspect`."""


class Lease(BaseLease):
    """The right to act on a resource, for a while; a context manager that releases it.

    Attributes:
        resource: What is protected.
        token: The fencing token; greater than that of every earlier lease on the resource.
        holder: The nonce that tells this acquisition from every other.
        owner: A label for people.
        ttl: Length of the lease, in seconds, as last asked for.
        trusted_until: When this process stops believing in it (:func:`fencing.clock.now`).
        admitted: Whether a database has committed its token.
        released: Whether it was given back.

    At the end of its ``with`` block the lease is released. An exception of the block always
    wins; see :meth:`release` for what is raised without one.
    """

    service: Grantor

    _ended: Ending | None = None

    def renew(self, ttl: float | None = None) -> None:
        """Extend the lease to ``ttl`` seconds from now.

        Args:
            ttl: New length, in seconds; default: as before.

        Raises:
            LeaseLostError: It is not ours any more; it cannot be revived.
            LockServiceError: The lock service could not be asked; the lease is as it was.
        """
        ttl = self.ttl if ttl is None else check_ttl(ttl)
        self.raise_if_over()
        self.service.renew(self, self.ttl_for(ttl))

    def acquire_again(self, ttl: float) -> bool:
        """The lease is acquired once more by whoever holds it: it counts, and gets its time.

        Args:
            ttl: What must be left of it, in seconds; it is renewed if it is less, never shortened.

        Returns:
            Whether it was; ``False`` if somebody is giving it back meanwhile.

        Raises:
            LeaseLostError: It is lost.
            LockServiceError: It had to be renewed, and the lock service could not be asked.
        """
        try:
            if self.trusted_until - now() < trust_ends(0.0, ttl) and not self.at_its_limit:
                self.renew(max(ttl, self.ttl))
            self.raise_if_over()
        except LeaseLostError:
            if self.blocks.given_back_by is None:
                raise
        return self.blocks.acquired_again()

    @begins_in_its_try
    def release(self) -> None:
        """Give the lease back. Releasing twice, or in a forked child, does nothing.

        A lease that was acquired again where it was held is given back as often; see
        ``reentrant``.

        Raises:
            LeaseLostError: It had been lost before.
            LockServiceError: The lock service could not be told; the lock ends by its ttl.
        """
        ends: bool | None = None
        try:
            ends = self.blocks.ends_when_given_back
            if not self.released and not self.is_foreign and self.blocks.give_back():
                self._free()
        except FencingError:
            raise
        except BaseException:
            ends = self.blocks.ends_when_given_back if ends is None else ends
            self._interrupted(len(self.blocks.levels), ended=ends)
            raise

    def _free(self) -> None:
        lost = self._lost or self._expired
        self.service.release(self)
        if lost:
            raise self.was_lost()

    def owned(self) -> bool:
        """Ask the lock service whether it still has this lease; if not, the lease is lost.

        For looking at. The answer may be out of date when it is read, so it makes nothing safe.

        Raises:
            LockServiceError: The lock service could not be asked; the lease is as it was.
        """
        if self.released or self.lost:
            return False
        return self.note_found(self.service.inspect(self.resource))

    def locked(self) -> bool:
        """Ask the lock service whether anybody holds the resource, by this lease or another.

        Raises:
            LockServiceError: The lock service could not be asked.
        """
        return self.service.inspect(self.resource).held

    def wait_lost(self, timeout: float | None = None) -> bool:
        """Wait until the lease is lost.

        Args:
            timeout: Longest wait, in seconds; default: until the lease is over.

        Returns:
            Whether it is lost; ``False`` when the time is up or it was released.
        """
        with self._lock:
            ended = self._ended = self._ended or Ending()
        give_up = math.inf if timeout is None else now() + timeout

        def left() -> float:
            return min(self.trusted_until, give_up) - now()

        while not self.released and not self.lost and now() < give_up:
            ended.wait(left)
        return self.lost

    async def __aenter__(self) -> NoReturn:
        # It has been acquired when Python gets here; nobody would release it.
        self.release()
        raise TypeError(
            f"the lease on {self.resource!r} was acquired synchronously, and has been released: "
            "use a plain with block, or in asyncio an AsyncGuard or an asynchronous lock service"
        )

    async def __aexit__(self, *exception: object) -> None:
        """Never reached; Python asks for it first."""

    @begins_in_its_try
    def __enter__(self) -> Self:
        depth = -1  # of open blocks; of which nothing was changed before it is asked for
        try:
            depth = len(self.blocks.levels)
            self._open()
            return self  # noqa: TRY300 - an interrupt before this line finds the lock held, too
        except FencingError:
            raise
        except BaseException:
            depth = len(self.blocks.levels) if depth < 0 else depth
            self._interrupted(depth, ended=depth == 0 and self.blocks.is_outermost)
            raise

    @begins_in_its_try
    def __exit__(
        self,
        kind: type[BaseException] | None,
        body: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        depth = -1
        try:
            depth = len(self.blocks.levels) - 1
            failure: _Failure | None = None
            if self._close():
                self._free()
        except (LeaseLostError, LockServiceError) as error:
            failure = error
        except BaseException:
            depth = len(self.blocks.levels) - 1 if depth < 0 else depth
            self._interrupted(depth, ended=depth == 0)
            raise
        if failure is not None:
            self._settle(failure, body)

    def _interrupted(self, depth: int = 0, *, ended: bool = True) -> None:
        """A signal's exception came while a block began or ended: nobody else would release it.

        Args:
            depth: How many blocks are left open.
            ended: Whether the lease ends.
        """
        self.blocks.cut(depth)
        if self.scope is not None:
            self.scope.cut(depth)
        if ended and not self.released and not self.is_foreign:
            with contextlib.suppress(FencingError):
                self.service.release(self)


class AsyncLease(BaseLease):
    """:class:`Lease` for asyncio: the same names and attributes, awaited."""

    service: AsyncGrantor

    cancel_on_loss = False
    _cancelled_blocks: tuple[CancelledBlock | None, ...] = ()
    _ended: AsyncEnding | None = None

    async def renew(self, ttl: float | None = None) -> None:
        """See :meth:`Lease.renew`."""
        ttl = self.ttl if ttl is None else check_ttl(ttl)
        self.raise_if_over()
        await self.service.renew(self, self.ttl_for(ttl))

    async def acquire_again(self, ttl: float) -> bool:
        """See :meth:`Lease.acquire_again`."""
        try:
            if self.trusted_until - now() < trust_ends(0.0, ttl) and not self.at_its_limit:
                await self.renew(max(ttl, self.ttl))
            self.raise_if_over()
        except LeaseLostError:
            if self.blocks.given_back_by is None:
                raise
        return self.blocks.acquired_again()

    async def release(self) -> None:
        """See :meth:`Lease.release`."""
        if not self.released and not self.is_foreign and self.blocks.give_back():
            await self._free()

    async def _free(self) -> None:
        lost = self._lost or self._expired
        await self.service.release(self)
        if lost:
            raise self.was_lost()

    async def owned(self) -> bool:
        """See :meth:`Lease.owned`."""
        if self.released or self.lost:
            return False
        return self.note_found(await self.service.inspect(self.resource))

    async def locked(self) -> bool:
        """See :meth:`Lease.locked`."""
        return (await self.service.inspect(self.resource)).held

    async def wait_lost(self, timeout: float | None = None) -> bool:
        """See :meth:`Lease.wait_lost`."""
        ended = self._ended = self._ended or AsyncEnding()
        give_up = math.inf if timeout is None else now() + timeout

        def left() -> float:
            return min(self.trusted_until, give_up) - now()

        while not self.released and not self.lost and now() < give_up:
            await ended.wait(left)
        return self.lost

    async def __aenter__(self) -> Self:
        if self.cancel_on_loss:
            self.raise_if_over()
        self._open()
        block = CancelledBlock() if self.cancel_on_loss else None
        self._cancelled_blocks = (*self._cancelled_blocks, block)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        body: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        ends, loss = self._leave(body)
        failure: _Failure | None = None
        try:
            if ends:
                await self._free()
        except (LeaseLostError, LockServiceError) as error:
            failure = error
        if loss is not None:
            raise loss from body
        if failure is not None:
            self._settle(failure, body)

    def _leave(self, body: BaseException | None) -> tuple[bool, LeaseLostError | None]:
        """End the innermost block, which has ended with this exception.

        Returns:
            Whether to release the lease; and its loss, if that is why the block was cancelled.
        """
        block, self._cancelled_blocks = self._cancelled_blocks[-1], self._cancelled_blocks[:-1]
        # The cancellation was ours, and has done its work: what it means is the loss.
        loss = self.loss() if block is not None and block.end(body) else None
        return self._close(), loss

    def cancel_blocks(self) -> None:
        """See :meth:`BaseLease.cancel_blocks`; the innermost block that did ask is cancelled."""
        for block in reversed(self._cancelled_blocks):
            if block is not None:
                block.cancel()
                return

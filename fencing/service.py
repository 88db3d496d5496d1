"""What a lock service must be able to do."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Generic, NoReturn, Protocol, TypeVar

from fencing.lease import AsyncGrantor, Grantor

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable
    from types import TracebackType

    from fencing.lease import AsyncLease, Lease
    from fencing.lease.group import AsyncLeaseGroup, LeaseGroup

__all__ = [
    "FOR_ADDRESS",
    "Acquisition",
    "AsyncLockService",
    "LockService",
    "check_service",
    "note_guarded",
]


if TYPE_CHECKING:
    # With a default, which Python's own has from 3.13 on.
    from typing_extensions import TypeVar as TypeVarWithDefault

    AcquiredT = TypeVarWithDefault("AcquiredT", AsyncLease, AsyncLeaseGroup, default=AsyncLease)
else:
    AcquiredT = TypeVar("AcquiredT")


class Acquisition(Generic[AcquiredT]):
    """An acquisition that has not begun: ``await`` it for a lease, or use it in ``async with``."""

    def __init__(self, begin: Callable[[], Awaitable[AcquiredT]]) -> None:
        # A factory, not a coroutine: an acquisition that is thrown away was never started.
        self._begin: Callable[[], Awaitable[AcquiredT]] = begin
        self._lease: AcquiredT | None = None

    def __enter__(self) -> NoReturn:
        raise TypeError("an asynchronous acquisition: use async with, or await it")

    def __exit__(self, *exception: object) -> None:
        """Never reached; Python asks for it first."""

    def __repr__(self) -> str:
        return "<Acquisition: not begun; await it, or use async with>"

    def __await__(self) -> Generator[object, None, AcquiredT]:
        return self._begin().__await__()

    async def __aenter__(self) -> AcquiredT:
        self._lease = await self._begin()
        return await self._lease.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        body: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._lease is not None  # noqa: S101 - __aenter__ has returned
        await self._lease.__aexit__(kind, body, traceback)


class LockService(Grantor, Protocol):
    """Who grants leases: locks that end by themselves, each with a fencing token.

    What a guard is made with, ``Guard(locks, engine)``; it can be used alone as well, and then
    nobody refuses a holder who has been overtaken. :class:`~fencing.PostgresLockService`,
    :class:`~fencing.RedisLockService`, :class:`~fencing.RedlockService`,
    :class:`~fencing.EtcdLockService` and :class:`~fencing.ZooKeeperLockService` are lock services.
    One is made by its class, or for an address::

        locks: LockService = fencing.connect("postgresql://localhost/bank")
        with locks.acquire("account:42", ttl=10) as lease:
            ...

    It is a protocol, for annotations and for lock services of others, which need not inherit from
    it.
    """

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
            LockNotAcquiredError: It was not granted in time.
            LockServiceError: The lock service could not be asked.
        """

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
        """Return a lease, or ``None`` at once when another holds it."""

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
        """Return leases on several resources, all or none, or raise.

        Args:
            resources: What to protect, each named once.
            ttl: Length of the leases, in seconds, from 0.01 to 24 hours.
            blocking: Whether to wait while another holds one of them.
            blocking_timeout: Longest wait for all of them, in seconds; ``None``: for as long as it
                takes.
            owner: A label for people; default: host, process, thread.
            fair: As in :meth:`acquire`, like the following.
            keepalive: Whether the leases are renewed in the background.
            max_lifetime: How long they live at the longest then, in seconds.
            on_lost: Called once with each lease that is lost.

        Raises:
            LockNotAcquiredError: One was not granted in time; none is held.
            LockServiceError: The lock service could not be asked.
        """

    def renew(self, lease: Lease, ttl: float) -> None:
        """Extend a lease to ``ttl`` seconds from now; it cannot be revived (LeaseLostError)."""

    def release(self, lease: Lease) -> None:
        """Give a lease back; LeaseLostError when it had been lost."""

    def raise_token(self, lease: Lease, *, floor: int) -> None:
        """Give a lease that is still ours a new token, greater than ``floor``.

        Raises:
            LeaseLostError: It is not ours any more.
            LockServiceError: The lock service could not be asked.
        """

    def locked(self, resource: str) -> bool:
        """Whether anybody holds a resource."""

    def force_release(self, resource: str) -> bool:
        """Take a lock from whoever holds it; whether it was taken from somebody."""

    def close(self) -> None:
        """Close idle connections of its own; it stays usable."""


class AsyncLockService(AsyncGrantor, Protocol):
    """:class:`LockService` for asyncio: what an ``AsyncGuard`` is made with.

    Each of those lock services has a twin for it, such as :class:`~fencing.AsyncRedisLockService`.
    One is made by its class, or for an address by :func:`fencing.connect_async`.
    """

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
        """See :meth:`LockService.acquire`; arguments are checked by the call itself."""

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
        """See :meth:`LockService.try_acquire`."""

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
        """See :meth:`LockService.acquire_all`; arguments are checked by the call itself."""

    async def renew(self, lease: AsyncLease, ttl: float) -> None:
        """See :meth:`LockService.renew`."""

    async def release(self, lease: AsyncLease) -> None:
        """See :meth:`LockService.release`."""

    async def raise_token(self, lease: AsyncLease, *, floor: int) -> None:
        """See :meth:`LockService.raise_token`."""

    async def locked(self, resource: str) -> bool:
        """See :meth:`LockService.locked`."""

    async def force_release(self, resource: str) -> bool:
        """See :meth:`LockService.force_release`."""

    async def aclose(self) -> None:
        """See :meth:`LockService.close`."""


FOR_ADDRESS = "an address goes to fencing.connect(url) or connect_async(url)"
"""What to tell who gives an address where it cannot be read."""


def check_service(locks: object, guard: str) -> None:
    """Raise ``TypeError`` unless ``locks`` looks like a lock service for a guard.

    Args:
        locks: What it was given.
        guard: The name of its class, which begins with ``Async`` where it is for asyncio.
    """
    missing = [
        name
        for name in ("acquire", "try_acquire", "renew", "release", "raise_token")
        if not callable(getattr(locks, name, None))
    ]
    given = type(locks).__name__
    if missing:
        hint = f"; {FOR_ADDRESS}" if isinstance(locks, str) else ""
        raise TypeError(
            f"a guard takes a lock service such as RedisLockService(client), not {given}, which "
            f"has no {missing[0]}(){hint}"
        )
    is_async = inspect.iscoroutinefunction(locks.try_acquire)  # type: ignore[attr-defined] # just seen
    if is_async != guard.startswith("Async"):
        kind, other = ("a synchronous", f"Async{guard}")
        if not is_async:
            kind, other = ("an asynchronous", guard.removeprefix("Async"))
        raise TypeError(f"{guard} takes {kind} lock service, not {given}; use {other} with it")


def note_guarded(locks: object) -> None:
    """Let a lock service that wants to know it know that a guard uses it.

    What it has handed out is then known to a database as well, which can reseed it.
    """
    note = getattr(locks, "note_guarded", None)
    if callable(note):
        note()

"""Performs the plans of :mod:`fencing.core.plan`, side by side for sync and async.

What is asked of a lock service is the same for every kind of guard; what is asked of a database is
asked of its *admissions*, which each kind of guard brings along.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from fencing.core.plan import (
    Admit,
    AskMark,
    Evict,
    GiveBack,
    Identify,
    Lock,
    LockTogether,
    RaiseToken,
    Renew,
)
from fencing.errors import FencingError
from fencing.lease import AsyncLease, BaseLease, Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from fencing.core.plan import Step
    from fencing.request import AcquireRequest
    from fencing.service import AsyncLockService, LockService

__all__ = [
    "AsyncPlannedAdmissions",
    "PlannedAdmissions",
    "hand_out_nothing",
    "perform",
    "perform_async",
]

_log = logging.getLogger("fencing")

T = TypeVar("T")
Granted = TypeVar("Granted")


class PlannedAdmissions(Protocol):
    """What performing a plan needs of a database."""

    def admit(self, lease: BaseLease, until: float) -> None:
        """Commit a lease's token as its resource's high-water mark.

        Args:
            lease: The lease.
            until: How long to wait for open transactions of other holders: a moment of
                :func:`fencing.clock.now`, in seconds.

        Raises:
            StaleFenceError: The mark is at or above the token; nothing was changed.
            LockNotAcquiredError: Open transactions block it (their pids are in ``blocked_by``),
                or no connection was free in time.
            LockServiceError: The token is implausibly far above the mark.
            GuardNotInstalledError: The database has no schema ``fencing``.
        """

    def evict(self, lease: BaseLease, since: float, until: float) -> Sequence[int]:
        """End the backends that keep a lease's admission waiting under an older token.

        Args:
            lease: The lease.
            since: When its admission began to wait, in seconds since 1970 by the database's
                clock: younger transactions are left alone.
            until: How long to wait for a connection: a moment of :func:`fencing.clock.now`, in
                seconds.

        Returns:
            The pids of those that were told to end.

        Raises:
            StaleFenceError: The mark is at or above the token; nobody was ended.
            FencingUsageError: This role may not end them.
        """

    def mark(self, resource: str) -> int | None:
        """The resource's high-water mark; ``None`` when nothing was ever admitted."""

    def identity(self, expected: str) -> str:
        """Which database this is, as ``fencing.identity()`` tells it; empty if it does not tell.

        Args:
            expected: What a lease was admitted in: it is asked again for one not known yet.
        """


class AsyncPlannedAdmissions(Protocol):
    """:class:`PlannedAdmissions` for asyncio."""

    async def aadmit(self, lease: BaseLease, until: float) -> None:
        """See :meth:`PlannedAdmissions.admit`."""

    async def aevict(self, lease: BaseLease, since: float, until: float) -> Sequence[int]:
        """See :meth:`PlannedAdmissions.evict`."""

    async def amark(self, resource: str) -> int | None:
        """See :meth:`PlannedAdmissions.mark`."""

    async def aidentity(self, expected: str) -> str:
        """See :meth:`PlannedAdmissions.identity`."""


def perform(
    plan: Generator[Step, Any, Granted], locks: LockService, hand_out: Callable[[Any], T]
) -> T:
    """Perform a plan whose databases have :class:`PlannedAdmissions`.

    Args:
        plan: The plan, not begun.
        locks: The lock service it asks.
        hand_out: Called with what the plan returns.

    Returns:
        What ``hand_out`` returns. What the plan raises is raised.
    """
    send: Any = None
    failure: BaseException | None = None
    outcomes: list[object] = []
    try:
        while True:
            try:
                step = plan.throw(failure) if failure is not None else plan.send(send)
            except StopIteration as end:
                return hand_out(end.value)
            send, failure = None, None
            try:
                # At once into the list, as an interrupt on the next line finds it there.
                outcomes.append(_perform_step(step, locks))
                send = outcomes[-1]
            except BaseException as error:  # noqa: BLE001 - the plan decides what it means
                failure = error
    except FencingError:
        raise
    except BaseException:
        # A signal's exception between two lines of ours, of which the plan knows nothing.
        for outcome in outcomes:
            for lease in outcome if isinstance(outcome, list) else [outcome]:
                if isinstance(lease, Lease) and not lease.released:
                    _give_back(lease)
        raise


def _perform_step(step: Step, locks: LockService) -> object:
    match step:
        case Lock() | LockTogether():
            return _lock(step, locks)
        case AskMark(database, resource):
            sync: PlannedAdmissions = database.admissions
            return sync.mark(resource)
        case Admit(database, lease, until):
            sync = database.admissions
            sync.admit(lease, until)
        case Identify(database, expected):
            sync = database.admissions
            return sync.identity(expected)
        case Evict(database, lease, since, until):
            sync = database.admissions
            return _told(lease, sync.evict(lease, since, until))
        case RaiseToken(Lease() as lease, floor):
            # Of the lock service that has granted it: it need not be the guard's.
            lease.service.raise_token(lease, floor=floor)
        case Renew(Lease() as lease):
            locks.renew(lease, lease.ttl)
        case GiveBack(Lease() as lease):
            _give_back(lease)
        case _:
            raise TypeError(step)
    return None


def _lock(step: Lock | LockTogether, locks: LockService) -> object:
    match step:
        case Lock(request):
            return _asked(request, locks)
        case LockTogether(requests):
            grant_all = getattr(locks, "grant_all", None)  # not every lock service can
            return None if grant_all is None else grant_all(requests)


def _asked(request: AcquireRequest, locks: LockService) -> Lease | None:
    """Ask with what :attr:`AcquireRequest.forwarded` says, each argument by its name.

    With ``**`` CPython looks for signals when the lock service has returned: what a handler raises
    would come when the lease is in nobody's hands yet.
    """
    resource, ttl, owner, floor = request.resource, request.ttl, request.owner_label, request.floor
    keepalive, lifetime = request.keepalive, request.max_lifetime
    if not request.blocking:
        if not keepalive:
            return locks.try_acquire(resource, ttl=ttl, owner=owner, floor=floor)
        return locks.try_acquire(
            resource, ttl=ttl, owner=owner, floor=floor, keepalive=True, max_lifetime=lifetime
        )
    timeout = request.blocking_timeout
    if not (request.fair or keepalive):
        return locks.acquire(resource, ttl=ttl, owner=owner, floor=floor, blocking_timeout=timeout)
    return locks.acquire(
        resource, ttl=ttl, owner=owner, floor=floor, blocking_timeout=timeout, fair=request.fair,
        keepalive=keepalive, max_lifetime=lifetime,
    )  # fmt: skip


def _give_back(lease: Lease) -> None:
    try:
        lease.release()
    except FencingError as error:
        _log.info("could not release a lease that was not handed out: %s", error)


def hand_out_nothing(lease: BaseLease | None) -> None:
    """As ``hand_out``, where a lease was only admitted."""


async def perform_async(
    plan: Generator[Step, Any, Granted], locks: AsyncLockService, hand_out: Callable[[Any], T]
) -> T:
    """Perform a plan whose databases have :class:`AsyncPlannedAdmissions`; see :func:`perform`."""
    send: Any = None
    failure: BaseException | None = None
    cancelled: asyncio.CancelledError | None = None
    while True:
        try:
            step = plan.throw(failure) if failure is not None else plan.send(send)
        except StopIteration as end:
            return hand_out(end.value)
        except Exception as error:
            if cancelled is not None:
                raise cancelled from error
            raise
        send, failure = None, None
        if cancelled is not None and not isinstance(step, GiveBack):
            # Put off until everything was given back that the plan wanted to.
            failure, cancelled = cancelled, None
            continue
        try:
            send = await _perform_step_async(step, locks)
        except asyncio.CancelledError as error:
            if isinstance(step, GiveBack):
                cancelled = error
            else:
                failure = error
        except BaseException as error:  # noqa: BLE001 - the plan decides what it means
            failure = error


async def _perform_step_async(step: Step, locks: AsyncLockService) -> object:
    match step:
        case Lock() | LockTogether():
            return await _lock_async(step, locks)
        case AskMark(database, resource):
            asynchronous: AsyncPlannedAdmissions = database.admissions
            return await asynchronous.amark(resource)
        case Admit(database, lease, until):
            asynchronous = database.admissions
            await asynchronous.aadmit(lease, until)
        case Identify(database, expected):
            asynchronous = database.admissions
            return await asynchronous.aidentity(expected)
        case Evict(database, lease, since, until):
            asynchronous = database.admissions
            return _told(lease, await asynchronous.aevict(lease, since, until))
        case RaiseToken(AsyncLease() as lease, floor):
            await lease.service.raise_token(lease, floor=floor)
        case Renew(AsyncLease() as lease):
            await locks.renew(lease, lease.ttl)
        case GiveBack(AsyncLease() as lease):
            try:
                await _through_cancellation(lease)
            except FencingError as error:
                _log.info("could not release a lease that was not handed out: %s", error)
        case _:
            raise TypeError(step)
    return None


async def _lock_async(step: Lock | LockTogether, locks: AsyncLockService) -> object:
    match step:
        case Lock(request) if request.blocking:
            return await locks.acquire(request.resource, **request.forwarded)
        case Lock(request):
            return await locks.try_acquire(request.resource, **request.forwarded)
        case LockTogether(requests):
            grant_all = getattr(locks, "grant_all", None)
            return None if grant_all is None else await grant_all(requests)


def _told(lease: BaseLease, ended: Sequence[int]) -> Sequence[int]:
    if ended:
        _log.warning(
            "ended PostgreSQL backends %s: under an older token they held %r, and kept token %d "
            "waiting",
            ", ".join(map(str, ended)), lease.resource, lease.token,
        )  # fmt: skip
    return ended


async def _through_cancellation(lease: AsyncLease) -> None:
    """Release, also while the task is being cancelled: the lock would stay for its whole ttl."""
    release = asyncio.ensure_future(lease.release())
    cancelled: asyncio.CancelledError | None = None
    while not release.done():
        try:
            await asyncio.wait({release})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        release.exception()  # looked at, so that nobody complains that nobody did
        raise cancelled
    release.result()

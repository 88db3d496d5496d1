"""Which leases a guard has handed out, and where: nobody may come to wait for himself."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fencing.core.whereabouts import current_task, running_loop
from fencing.errors import FencingUsageError, LockNotAcquiredError
from fencing.keepalive import keeper_of
from fencing.lease import BaseLease, Lease

if TYPE_CHECKING:
    from fencing.lease import AsyncLease
    from fencing.request import AcquireRequest

__all__ = ["Held", "enter_again", "enter_again_async"]

LeaseT = TypeVar("LeaseT", bound=BaseLease)

_FEW = 64
"""So many leases may have gone before they are looked for, and forgotten."""


class _Here(threading.local):
    """What a guard or lock service has handed out in this thread: a lease, and the task it is of.

    By resource and the number of the task, 0 where there is none.
    """

    def __init__(self) -> None:
        self.leases: dict[tuple[str, int], tuple[weakref.ref[Any], weakref.ref[Any] | None]] = {}
        self.purge_at = _FEW


class Held(Generic[LeaseT]):
    """The leases of one guard or lock service, by resource, thread and task; not held by it."""

    # No weakref.WeakValueDictionary: it does its work in callbacks, in which Python swallows what
    # a signal handler raises.

    def __init__(self) -> None:
        self._here = _Here()

    def note(self, lease: LeaseT) -> None:
        """A lease is handed out, here."""
        here = self._here
        if running_loop() is None or (task := current_task()) is None:
            here.leases[lease.resource, 0] = weakref.ref(lease), None
        else:
            here.leases[lease.resource, id(task)] = weakref.ref(lease), weakref.ref(task)
        if len(here.leases) > here.purge_at:
            # In place, of what there was at one moment: a signal handler may note one meanwhile.
            for key, item in list(here.leases.items()):
                if item[0]() is None and (taken := here.leases.pop(key, item)) is not item:
                    here.leases[key] = taken
            here.purge_at = 2 * len(here.leases) + _FEW

    def lease_here(self, resource: str) -> LeaseT | None:
        """The lease that this thread or task has on a resource, and that nobody is giving back."""
        lease = self._noted(resource)
        return None if lease is None or lease.blocks.given_back_by is not None else lease

    def _noted(self, resource: str) -> LeaseT | None:
        task = current_task()
        found = self._here.leases.get((resource, id(task) if task else 0))
        if found is None:
            return None
        lease: LeaseT | None = found[0]()
        # A task's number is used again when it has ended.
        here = lease is not None and lease.remaining > 0 and (found[1] and found[1]()) is task
        return lease if here else None

    def raise_if_held(self, resource: str) -> None:
        """Raise ``LockNotAcquiredError`` if this thread or task holds a resource."""
        if self.lease_here(resource) is not None:
            raise LockNotAcquiredError(
                f"this thread or task already holds {resource!r} and would wait for itself; use "
                "the lease it has, or pass "
                "reentrant=True",
                resource=resource,
            )
        self.raise_if_giving_back(resource)

    def raise_if_giving_back(self, resource: str) -> None:
        """Raise ``LockNotAcquiredError`` in a signal handler whose thread is giving it back.

        A task may have it given back by another, and wait.
        """
        lease = self._noted(resource)
        if isinstance(lease, Lease) and lease.blocks.given_back_by == threading.get_ident():
            raise LockNotAcquiredError(
                f"this thread is just giving {resource!r} back, and would wait for itself in a "
                "signal handler; acquire it when the handler has returned",
                resource=resource,
            )


def enter_again(held: Held[Lease], request: AcquireRequest) -> Lease | None:
    """The lease that this thread or task has already, acquired once more; ``None``: it has none.

    Raises:
        FencingUsageError: It does not have what was asked for; nothing was changed.
        LeaseLostError: It is lost.
        LockNotAcquiredError: A signal handler would wait for its own thread to give it back.
        LockServiceError: It had to be renewed, and the lock service could not be asked.
    """
    lease = held.lease_here(request.resource)
    if lease is not None:
        _check_wishes(lease, request)
        if lease.acquire_again(request.ttl):
            keeper_of(lease).begin(lease, request)
            return lease
    if request.blocking:
        held.raise_if_giving_back(request.resource)
    return None


async def enter_again_async(held: Held[AsyncLease], request: AcquireRequest) -> AsyncLease | None:
    """:func:`enter_again` for asyncio."""
    lease = held.lease_here(request.resource)
    if lease is not None:
        _check_wishes(lease, request)
        if await lease.acquire_again(request.ttl):
            keeper_of(lease).begin(lease, request)
            return lease
    return None


def _check_wishes(lease: Lease | AsyncLease, request: AcquireRequest) -> None:
    """Refuse what would bind the lease of whoever acquired it first, and did not ask for it."""
    wishes = []
    if request.max_lifetime is not None and lease.may_outlive(request.max_lifetime):
        wishes.append(f"max_lifetime={request.max_lifetime!r}")
    if getattr(request, "cancel_on_loss", False) and not getattr(lease, "cancel_on_loss", False):
        wishes.append("cancel_on_loss=True")
    if wishes:
        raise FencingUsageError(
            f"this thread or task already holds {request.resource!r}, and acquiring it again gives "
            f"the same lease, which has no {' and no '.join(wishes)}: it would end, or cancel, the "
            "outer block, too; ask for it where the lease is acquired first"
        )

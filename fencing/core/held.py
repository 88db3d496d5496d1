"""Which leases a guard has handed out, and where: nobody may come to wait for himself."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Generic, TypeVar

from fencing.core.whereabouts import Whereabouts, current_task
from fencing.errors import LockNotAcquiredError
from fencing.keepalive import keeper_of
from fencing.lease import BaseLease

if TYPE_CHECKING:
    from fencing.lease import AsyncLease, Lease
    from fencing.request import AcquireRequest

__all__ = ["Held", "enter_again", "enter_again_async"]

LeaseT = TypeVar("LeaseT", bound=BaseLease)


class Held(Generic[LeaseT]):
    """The leases of one guard or lock service, by resource, thread and task."""

    def __init__(self) -> None:
        self._leases: weakref.WeakValueDictionary[tuple[str, int, int], LeaseT] = (
            weakref.WeakValueDictionary()
        )
        # The key's idents are used again when a thread or task has ended.
        self._places: weakref.WeakKeyDictionary[LeaseT, Whereabouts] = weakref.WeakKeyDictionary()

    def note(self, lease: LeaseT) -> None:
        """A lease is handed out, here."""
        self._leases[_key(lease.resource)] = lease
        self._places[lease] = Whereabouts()

    def lease_here(self, resource: str) -> LeaseT | None:
        """The lease that this thread or task has on a resource."""
        lease = self._leases.get(_key(resource))
        if lease is None or lease.remaining <= 0:
            return None
        place = self._places.get(lease)
        return lease if place is not None and place.is_here() else None

    def raise_if_held(self, resource: str) -> None:
        """Raise ``LockNotAcquiredError`` if this thread or task holds a resource."""
        if self.lease_here(resource) is not None:
            raise LockNotAcquiredError(
                f"this thread or task already holds {resource!r} and would wait for itself; use "
                "the lease it has, or pass "
                "reentrant=True",
                resource=resource,
            )


def enter_again(held: Held[Lease], request: AcquireRequest) -> Lease | None:
    """The lease that this thread or task has already, acquired once more; ``None``: it has none.

    Raises:
        LeaseLostError: It is lost.
        LockServiceError: It had to be renewed, and the lock service could not be asked.
    """
    lease = held.lease_here(request.resource)
    if lease is not None:
        lease.acquire_again(request.ttl)
        keeper_of(lease).begin(lease, request)
    return lease


async def enter_again_async(held: Held[AsyncLease], request: AcquireRequest) -> AsyncLease | None:
    """:func:`enter_again` for asyncio."""
    lease = held.lease_here(request.resource)
    if lease is not None:
        await lease.acquire_again(request.ttl)
        keeper_of(lease).begin(lease, request)
    return lease


def _key(resource: str) -> tuple[str, int, int]:
    task = current_task()
    return resource, threading.get_ident(), 0 if task is None else id(task)

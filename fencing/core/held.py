"""Which leases a guard has handed out, and where: nobody may come to wait for himself."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from fencing.core.whereabouts import Whereabouts, current_task
from fencing.errors import LockNotAcquiredError

if TYPE_CHECKING:
    from fencing.lease import BaseLease

__all__ = ["Held"]


class Held:
    """The leases of one guard, by resource, thread and task."""

    def __init__(self) -> None:
        self._leases: weakref.WeakValueDictionary[tuple[str, int, int], BaseLease] = (
            weakref.WeakValueDictionary()
        )
        # The key's idents are used again when a thread or task has ended.
        self._places: weakref.WeakKeyDictionary[BaseLease, Whereabouts] = (
            weakref.WeakKeyDictionary()
        )

    def note(self, lease: BaseLease) -> None:
        """A lease is handed out, here."""
        self._leases[_key(lease.resource)] = lease
        self._places[lease] = Whereabouts()

    def __contains__(self, resource: str) -> bool:
        """Whether this thread or task holds a resource."""
        lease = self._leases.get(_key(resource))
        if lease is None or lease.remaining <= 0:
            return False
        place = self._places.get(lease)
        return place is not None and place.is_here()

    def raise_if_held(self, resource: str) -> None:
        """Raise ``LockNotAcquiredError`` if this thread or task holds a resource."""
        if resource in self:
            raise LockNotAcquiredError(
                f"this thread or task already holds {resource!r} and would wait for itself; use "
                "the lease it has",
                resource=resource,
            )


def _key(resource: str) -> tuple[str, int, int]:
    task = current_task()
    return resource, threading.get_ident(), 0 if task is None else id(task)

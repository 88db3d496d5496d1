"""Which leases are in force here: ambient scopes, explicit fences and suspensions.

A scope is *ambient* in the thread or task that opened it, through a context variable, and so in
what that one starts with a copy of its context. It carries its own ``closed`` flag, since such a
copy outlives the block: a task that was started inside must not present a dead lease for ever.
Nothing here ever resets the context variable with a token, because a block may be closed in
another context than it was opened in (an async generator that is finalised by the event loop).
"""

from __future__ import annotations

import itertools
import weakref
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencing.lease import BaseLease

__all__ = [
    "BlockFence",
    "Entry",
    "Fence",
    "Suspension",
    "ambient_fences",
    "is_suspended",
    "nothing_is_ambient",
    "presented_leases",
]

_order = itertools.count(1)


class Entry:
    """Something that was opened and will be closed, in an order that all entries share.

    Attributes:
        opened: Its place in that order.
        closed: Whether it is over; hooks ignore it from then on.
        databases: The databases it is about; empty: whichever it is used with.
    """

    def __init__(self, databases: Iterable[object] = ()) -> None:
        self.opened = next(_order)
        self.closed = False
        self.databases = frozenset(databases)

    @property
    def is_over(self) -> bool:
        """Whether it can be forgotten."""
        return self.closed

    def concerns(self, database: object) -> bool:
        """Whether it is open, and about this database."""
        return not self.closed and (not self.databases or database in self.databases)

    def push(self) -> None:
        """Make it ambient in the running thread or task."""
        _entries.set((*_open_entries(), self))

    def close(self) -> None:
        """End it, in every thread and task that has a copy."""
        self.closed = True
        _entries.set(_open_entries())


class Fence(Entry):
    """Leases that the transactions begun under it present."""

    def __init__(self, leases: Iterable[BaseLease], databases: Iterable[object] = ()) -> None:
        super().__init__(databases)
        self._leases = tuple(leases)

    @property
    def leases(self) -> tuple[BaseLease, ...]:
        """The leases."""
        return self._leases


class BlockFence(Fence):
    """The fence of a lease's own block, which does not keep the lease alive.

    Should an interrupt keep the block from ending, it ends with the lease.
    """

    def __init__(self, lease: BaseLease, databases: Iterable[object] = ()) -> None:
        super().__init__((), databases)
        self._lease_of = weakref.ref(lease)

    @property
    def leases(self) -> tuple[BaseLease, ...]:
        """The lease, as long as anybody has it."""
        lease = self._lease_of()
        return () if lease is None else (lease,)

    @property
    def is_over(self) -> bool:
        """See `Entry.is_over`."""
        return self.closed or self._lease_of() is None


class Suspension(Entry):
    """Hides every entry that was opened before it."""


_entries: ContextVar[tuple[Entry, ...]] = ContextVar("fencing_entries", default=())


def nothing_is_ambient() -> bool:
    """Whether nothing at all was opened here, which is the rule and quickly seen."""
    return not _entries.get()


def ambient_fences(database: object) -> list[Fence]:
    """The open ambient fences about a database, outermost first, suspended or not."""
    return [e for e in _entries.get() if isinstance(e, Fence) and e.concerns(database)]


def is_suspended(database: object) -> bool:
    """Whether a suspension about this database is open here."""
    return _hidden_until(database) > 0


def presented_leases(database: object, explicit: Iterable[Fence] = ()) -> tuple[BaseLease, ...]:
    """The leases that a transaction begun here and now presents.

    The innermost fence wins where several name one resource, and an explicit one beats an
    ambient one. A copy of a parent process's scope is not ours.

    Args:
        database: The database the transaction is on.
        explicit: Fences of its own session or connection, outermost first.
    """
    fences, hidden = _in_force(database)
    leases: dict[str, BaseLease] = {}
    for fence in fences:
        if fence.opened > hidden:
            leases |= {lease.resource: lease for lease in fence.leases if not lease.is_foreign}
    for fence in explicit:
        if fence.opened > hidden and not fence.closed:
            leases |= {lease.resource: lease for lease in fence.leases}
    return tuple(leases.values())


def _in_force(database: object) -> tuple[list[Fence], int]:
    """`ambient_fences` and `_hidden_until`, in one pass: this is asked for each transaction."""
    fences: list[Fence] = []
    hidden = 0
    for entry in _entries.get():
        if entry.concerns(database):
            if isinstance(entry, Fence):
                fences.append(entry)
            elif isinstance(entry, Suspension):
                hidden = max(hidden, entry.opened)
    return fences, hidden


def _hidden_until(database: object) -> int:
    return max(
        (e.opened for e in _entries.get() if isinstance(e, Suspension) and e.concerns(database)),
        default=0,
    )


def _open_entries() -> tuple[Entry, ...]:
    return tuple(entry for entry in _entries.get() if not entry.is_over)

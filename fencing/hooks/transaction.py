"""What a transaction has presented, kept for as long as the transaction.

Not in ``Connection.info``, which belongs to the pooled connection and outlives the transaction.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING

from fencing.clock import now
from fencing.hooks.ambient import Whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from fencing.errors import WriteRefusedError
    from fencing.lease import BaseLease

__all__ = ["LIMIT_SLACK", "Presentation", "Presentations"]

LIMIT_SLACK = 0.05
"""A server's limit may fire this much before our own clock says that trust has ended, in seconds:
both start from the same trust, in whole milliseconds, on two clocks."""


class Presentation:
    """What one transaction has presented.

    Attributes:
        leases: The leases; empty when there were none, or none could be presented.
        why_not: Why a lease that was in force was not presented; empty when it was.
        backend_pid: PostgreSQL's pid of the session.
        committing: Whether COMMIT is being sent: a failure then has an unknown outcome.
        refusal: What the database has refused in it.
        trusted_for: The trust that was left in its leases when it began, in seconds.
        bounded_until: When the server's limits end it (:func:`fencing.clock.now`), in seconds.
    """

    def __init__(
        self,
        connection: Connection,
        leases: tuple[BaseLease, ...] = (),
        *,
        why_not: str = "",
        backend_pid: int = 0,
    ) -> None:
        self._connection = weakref.ref(connection)
        self.leases = leases
        self.why_not = why_not
        self.backend_pid = backend_pid
        self.committing = False
        self.refusal: WriteRefusedError | None = None
        self.begun_in = Whereabouts()
        self.trusted_for = min((lease.remaining for lease in leases), default=0.0)
        self.bounded_until = now() + self.trusted_for

    @property
    def is_open(self) -> bool:
        """Whether its transaction has not ended."""
        connection = self._connection()
        return (
            connection is not None
            and not connection.closed
            and not connection.invalidated
            and connection.in_transaction()
        )

    @property
    def may_have_ended(self) -> bool:
        """Whether the server's limits may have ended it by now."""
        return bool(self.leases) and now() >= self.bounded_until - LIMIT_SLACK

    def lease_on(self, resource: str) -> BaseLease | None:
        """The lease it has presented on a resource."""
        return next((lease for lease in self.leases if lease.resource == resource), None)

    @property
    def lease_over(self) -> BaseLease | None:
        """A presented lease that nothing may be done under any more."""
        return next((lease for lease in self.leases if lease.released or lease.lost), None)


class Presentations:
    """The presentations of one engine's connections; safe for threads."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a forked child: the transactions are its parent's, and so is the lock."""
        self._by_connection: weakref.WeakKeyDictionary[Connection, Presentation] = (
            weakref.WeakKeyDictionary()
        )
        self._lock = threading.Lock()

    def put(self, connection: Connection, presentation: Presentation) -> None:
        """Note what the transaction that begins on a connection presents."""
        with self._lock:
            self._by_connection[connection] = presentation

    def get(self, connection: Connection) -> Presentation | None:
        """What the latest transaction of a connection has presented."""
        return self._by_connection.get(connection)

    def open_on(self, resource: str) -> Iterator[tuple[Presentation, BaseLease]]:
        """The open transactions that have presented a lease on a resource."""
        with self._lock:
            presentations = list(self._by_connection.values())
        for presentation in presentations:
            lease = presentation.lease_on(resource)
            if lease is not None and presentation.is_open:
                yield presentation, lease

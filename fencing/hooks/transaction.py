"""What a transaction has presented, kept for as long as the transaction.

Not in ``Connection.info``, which belongs to the pooled connection and outlives the transaction.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from fencing.core.presented import Presented

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from fencing.errors import WriteRefusedError
    from fencing.hooks.ahead import EntryAhead
    from fencing.lease import BaseLease

__all__ = ["Presentation", "Presentations"]


class Presentation(Presented):
    """What one transaction of an engine has presented.

    Attributes:
        why_not: Why a lease that was in force was not presented; empty when it was.
        refusal: What the database has refused in it.
        ahead: Its entry, as long as the answer to it was not looked at.
    """

    def __init__(
        self,
        connection: Connection,
        leases: tuple[BaseLease, ...] = (),
        *,
        why_not: str = "",
        backend_pid: int = 0,
        with_receipt: bool = False,
    ) -> None:
        super().__init__(leases, backend_pid=backend_pid, with_receipt=with_receipt)
        self._connection = weakref.ref(connection)
        self.why_not = why_not
        self.refusal: WriteRefusedError | None = None
        self.ahead: EntryAhead | None = None

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


class Presentations:
    """The presentations of one engine's connections; safe for threads, and for signal handlers.

    Without a lock, for which a handler would wait for its own thread: each call changes the table,
    or copies what is in it, in one step.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin anew, in a forked child: the transactions are its parent's."""
        self._by_connection: weakref.WeakKeyDictionary[Connection, Presentation] = (
            weakref.WeakKeyDictionary()
        )

    def put(self, connection: Connection, presentation: Presentation) -> None:
        """Note what the transaction that begins on a connection presents."""
        self._by_connection[connection] = presentation

    def drop(self, connection: Connection) -> None:
        """A transaction begins that presents nothing."""
        self._by_connection.pop(connection, None)

    def get(self, connection: Connection) -> Presentation | None:
        """What the latest transaction of a connection has presented."""
        return self._by_connection.get(connection)

    def open_on(self, resource: str) -> Iterator[tuple[Presentation, BaseLease]]:
        """The open transactions that have presented a lease on a resource."""
        for reference in self._by_connection.keyrefs():
            connection = reference()
            presentation = None if connection is None else self.get(connection)
            lease = None if presentation is None else presentation.lease_on(resource)
            if presentation is not None and lease is not None and presentation.is_open:
                yield presentation, lease

"""Every error this package raises, in one tree.

::

    FencingError
    ├── LockNotAcquiredError (also TimeoutError)   not granted, or not admitted, in time
    ├── LeaseLostError                             the lock service says it is not ours any more
    │   └── LeaseExpiredError                      our own clock says so; nothing was sent
    ├── WriteRefusedError                          the database refused
    │   ├── StaleFenceError (also LeaseLostError)  a newer holder has been admitted
    │   └── UnfencedWriteError                     no lease was presented, or one never admitted
    ├── GuardNotInstalledError                     declared fenced, yet the database has no guard
    ├── TableBusyError (also TimeoutError)         writers kept its guard from being changed
    ├── CommitOutcomeUnknownError                  the connection was lost during COMMIT
    ├── LockServiceError                           not reachable, or answered nonsense
    └── FencingUsageError                          the call cannot be fenced the way it is made

The message of an error says what happened, to which resource, and what to do about it; its facts
are attributes as well, so that no caller has to parse a message. All of them can be pickled.

Bad arguments are not in this tree: they raise ``ValueError`` or ``TypeError`` before anything is
sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "COMMITTED",
    "ROLLED_BACK",
    "UNKNOWN",
    "CommitOutcomeUnknownError",
    "FencingError",
    "FencingUsageError",
    "GuardNotInstalledError",
    "LeaseExpiredError",
    "LeaseLostError",
    "LockNotAcquiredError",
    "LockServiceError",
    "StaleFenceError",
    "TableBusyError",
    "UnfencedWriteError",
    "WriteRefusedError",
]

COMMITTED, ROLLED_BACK, UNKNOWN = "committed", "rolled back", "unknown"
"""What :meth:`CommitOutcomeUnknownError.outcome` answers."""


class FencingError(Exception):
    """Something about a lock, a lease or a fence went wrong."""

    def __init__(self, message: str | None = None) -> None:
        # ``args`` holds the message alone: ``Exception.__reduce__`` then restores the facts from
        # ``__dict__``, which is what makes these errors survive a process boundary.
        super().__init__(message or (self.__doc__ or "").partition("\n")[0])


class LockNotAcquiredError(FencingError, TimeoutError):
    """The lock was not acquired in time.

    Attributes:
        resource: The resource that was asked for.
        waited: How long we waited, in seconds.
        blocked_by: PostgreSQL backend pids of the transactions that kept the admission waiting;
            empty when it was the lock service that did not grant.
        blocked_since: When it began to wait for them, in seconds since 1970 by the database's
            clock; ``None`` when it did not.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        resource: str = "",
        waited: float = 0.0,
        blocked_by: Iterable[int] = (),
        blocked_since: float | None = None,
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.waited = waited
        self.blocked_by = tuple(blocked_by)
        self.blocked_since = blocked_since


class LeaseLostError(FencingError):
    """The lease is not ours any more.

    Attributes:
        resource: The resource the lease was for.
        token: The fencing token the lease carried.
    """

    def __init__(
        self, message: str | None = None, *, resource: str = "", token: int | None = None
    ) -> None:
        super().__init__(message)
        self.resource = resource
        self.token = token


class LeaseExpiredError(LeaseLostError):
    """The lease has run out by our own clock; nothing was sent."""


class WriteRefusedError(FencingError):
    """The database refused a write to a guarded table.

    Attributes:
        resource: The resource the write touched, where the database could tell.
    """

    def __init__(self, message: str | None = None, *, resource: str | None = None) -> None:
        super().__init__(message)
        self.resource = resource


class StaleFenceError(WriteRefusedError, LeaseLostError):
    """A newer holder has been admitted; this one has been overtaken.

    Attributes:
        resource: The resource.
        token: The token that was presented.
        current_token: The resource's high-water mark in the database, where it is known.
    """

    resource: str

    def __init__(
        self,
        message: str | None = None,
        *,
        resource: str = "",
        token: int | None = None,
        current_token: int | None = None,
    ) -> None:
        FencingError.__init__(self, message)
        self.resource = resource
        self.token = token
        self.current_token = current_token


class UnfencedWriteError(WriteRefusedError):
    """A guarded table was written without a lease that the database has admitted.

    Attributes:
        table: The guarded table, as ``schema.name``; ``None`` when it was a lease that was
            presented before it had been admitted, and no table was touched yet.
        resource: The resource the write needs a lease for, where it is known.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        table: str | None = None,
        resource: str | None = None,
    ) -> None:
        super().__init__(message, resource=resource)
        self.table = table


class GuardNotInstalledError(FencingError):
    """A table is declared fenced, and the database has no guard on it.

    Attributes:
        table: The table, as ``schema.name`` or ``name``.
    """

    def __init__(self, message: str | None = None, *, table: str = "") -> None:
        super().__init__(message)
        self.table = table


class TableBusyError(FencingError, TimeoutError):
    """Transactions that use a table kept its guard from being changed in time.

    Nothing was changed: run it again, or allow a longer ``lock_timeout``.

    Attributes:
        table: The table, as ``schema.name``.
        blocked_by: PostgreSQL backend pids of the transactions that were in the way.
    """

    def __init__(
        self, message: str | None = None, *, table: str = "", blocked_by: Iterable[int] = ()
    ) -> None:
        super().__init__(message)
        self.table = table
        self.blocked_by = tuple(blocked_by)


class Inquiring(Protocol):
    """Who can find out what has become of a transaction."""

    def ask(self, timeout: float) -> str:
        """Ask, waiting for a transaction that is still open."""

    async def aask(self, timeout: float) -> str:
        """:meth:`ask` of an async engine or connection."""


class CommitOutcomeUnknownError(FencingError):
    """The connection was lost while COMMIT was under way: it may have been committed, or not.

    Neither repeat the work nor take it for done before :meth:`outcome` has said which; where that
    is ``"unknown"``, compare the data. The work can be repeated safely if it is idempotent, or
    checks under a new lease what it finds.

    Attributes:
        resources: What the transaction had presented leases on.
        receipt: The id of the transaction's receipt; ``None`` if its guard keeps none, and then
            the outcome is often unknown.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        resources: Iterable[str] = (),
        receipt: str | None = None,
        inquiry: Inquiring | None = None,
    ) -> None:
        super().__init__(message)
        self.resources = tuple(resources)
        self.receipt = receipt
        self._inquiry = inquiry
        self._outcome = UNKNOWN

    def __reduce__(self) -> tuple[Any, ...]:
        # Who can ask has connections, and stays in its process.
        return (type(self), self.args, {**self.__dict__, "_inquiry": None})

    def outcome(self, timeout: float = 5.0) -> str:
        """What has become of the transaction, asked on a new connection. It never guesses.

        Of one engine or connection that is synchronous; see :meth:`aoutcome` for the others.

        Args:
            timeout: How long to wait for it while it is still open, in seconds. Connecting may
                take as long as the engine's or connection's ``connect_timeout`` allows.

        Returns:
            ``"committed"``, ``"rolled back"`` (and it will not be committed any more), or
            ``"unknown"``: the database could not be asked, it is still open, or nothing tells.
            Certain with receipts: ``Guard(..., receipts=True)``.
        """
        if self._outcome == UNKNOWN and self._inquiry is not None:
            self._outcome = self._inquiry.ask(timeout)
        return self._outcome

    async def aoutcome(self, timeout: float = 5.0) -> str:
        """:meth:`outcome` of an async engine or connection."""
        if self._outcome == UNKNOWN and self._inquiry is not None:
            self._outcome = await self._inquiry.aask(timeout)
        return self._outcome


class LockServiceError(FencingError):
    """The lock service could not be reached, or answered nonsense.

    Attributes:
        resource: The resource that was asked about; empty when the question was about none.
    """

    def __init__(self, message: str | None = None, *, resource: str = "") -> None:
        super().__init__(message)
        self.resource = resource


class FencingUsageError(FencingError):
    """The call cannot be fenced the way it is made.

    Trying again does not help: the program has to be changed, or how it is set up, and the message
    says what to do. A lease, for instance, is presented in a transaction's first statement, so it
    cannot be presented in one that has begun::

        with Session(engine) as session:
            session.get(Account, 42)
            with fence(session, lease):  # FencingUsageError: commit or roll back first
                ...

    Others are a second ``with`` block of one lease, a two-phase transaction under a lease,
    ``fence()`` on an engine that no guard was made for, a connection that is closed or busy, and a
    schema ``fencing`` that is too old or too new for what is asked of it.
    """

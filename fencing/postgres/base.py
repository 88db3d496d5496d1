"""What both guards of bare psycopg share: everything but waiting."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from fencing.core.held import Held
from fencing.core.identity import KnownIdentity
from fencing.core.observed import Observations
from fencing.core.plan import acquire_admitted, admit_lease, not_granted
from fencing.core.several import acquire_several
from fencing.keepalive import watch
from fencing.lease import BaseLease
from fencing.postgres.entry import GuardedScope, open_blocks
from fencing.request import check_evict_after

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterator, Sequence

    from fencing.core.plan import Plan, PlanOfAll
    from fencing.postgres.entry import Entry
    from fencing.postgres.statements import AnyConnection
    from fencing.request import AcquireRequest

__all__ = ["BaseDatabase", "BasePsycopgGuard", "check_databases"]

_log = logging.getLogger("fencing")


class Scope(GuardedScope):
    """The ``with`` block of a guarded lease; nothing is ambient in it."""

    raises_loss = False

    def __init__(self, lease: BaseLease, guard: BasePsycopgGuard[Any, Any]) -> None:
        self._resource, self._holder = lease.resource, lease.holder
        self._guard = guard

    @property
    def databases(self) -> Sequence[BaseDatabase]:
        """Where the lease was admitted."""
        return self._guard.databases

    @property
    def keeps_receipts(self) -> bool:
        """Whether transactions under the lease leave receipts."""
        return self._guard.receipts

    def observe(self, connection: AnyConnection) -> None:
        """The lease is presented on a connection."""
        self._guard.observe(connection)

    def open(self) -> None:
        """Nothing begins."""

    def cut(self, depth: int) -> None:
        """Nothing has begun."""

    def close(self, *, outermost: bool) -> None:
        """Warn of transactions that are still open."""
        if not outermost:
            return
        for database in self.databases:
            for entry, lease in database.open_on(self._resource):
                if lease.holder == self._holder:
                    _log.warning(
                        "a transaction begun under the lease on %r (token %d) is still open at "
                        "the end of its block, as PostgreSQL backend %d of %s: it will not be "
                        "committed, and the next holder waits for it; end its block first",
                        lease.resource, lease.token, entry.backend_pid, database.name,
                    )  # fmt: skip


class BaseDatabase:
    """A database of a guard, as plans know it."""

    def __init__(self, source: object, name: str) -> None:
        self.source = source
        self.name = name
        self.known = KnownIdentity()

    @property
    def presentations(self) -> Self:
        """What this process has open in it."""
        return self

    @property
    def admissions(self) -> Self:
        """Who admits leases in it."""
        return self

    def open_on(self, resource: str) -> Iterator[tuple[Entry, BaseLease]]:
        """The open blocks under leases on a resource that were acquired for this database."""
        for entry, lease in open_blocks(resource):
            scope = lease.scope
            if isinstance(scope, Scope) and any(d.source == self.source for d in scope.databases):
                yield entry, lease


LeaseT = TypeVar("LeaseT", bound=BaseLease)
DatabaseT = TypeVar("DatabaseT", bound=BaseDatabase)


class BasePsycopgGuard(Generic[LeaseT, DatabaseT]):
    """What both guards share."""

    def __init__(
        self, databases: Sequence[DatabaseT], evict_after: float | None, *, receipts: bool
    ) -> None:
        self.evict_after = check_evict_after(evict_after)
        self.databases = tuple(databases)
        self.receipts = receipts
        self._observations = Observations()
        self._held: Held[LeaseT] = Held()

    def __repr__(self) -> str:
        names = ", ".join(database.name for database in self.databases)
        return f"<{type(self).__name__} of {names}>"

    @property
    def observed(self) -> Counter[tuple[str, str]]:
        """What guards in observe mode have let pass, in this process, where we could hear of it.

        That is on connections on which a lease of this guard was presented, and on those of
        :meth:`observe`. Counts by table (``"public.accounts"``) and by ``"unfenced"``, ``"stale"``
        or ``"not admitted"``: what would be refused if the table were enforced. Each was logged as
        well, by the logger ``fencing.observed``, with the line that wrote.
        """
        return self._observations.counts

    def observe(self, connection: AnyConnection) -> None:
        """Count in :attr:`observed` what is reported on a connection from now on.

        Args:
            connection: One of psycopg's, of either kind; once more changes nothing.
        """
        self._observations.listen_to(connection)

    def _plan(self, request: AcquireRequest) -> Plan:
        return acquire_admitted(request, self.databases, evict_after=self.evict_after)

    def _plan_all(self, requests: Sequence[AcquireRequest]) -> PlanOfAll:
        for request in requests:
            self._held.raise_if_held(request.resource)
        return acquire_several(requests, self.databases, evict_after=self.evict_after)

    def _plan_admission(self, lease: LeaseT) -> Plan:
        return admit_lease(lease, self.databases, evict_after=self.evict_after)

    def _handing_out(self, request: AcquireRequest) -> Callable[[LeaseT | None], LeaseT]:
        def hand_out(lease: LeaseT | None) -> LeaseT:
            if lease is None:
                raise not_granted(request.resource)
            lease.scope = Scope(lease, self)
            self._held.note(lease)
            if request.is_kept_or_watched:
                watch(lease, request)
            return lease

        return hand_out


def check_databases(databases: Sequence[object], max_connections: int, guard: str) -> None:
    """Raise unless there are databases, and connections to them."""
    if not databases:
        raise TypeError(f"{guard} takes at least one database: {guard}(locks, conninfo)")
    if max_connections < 1:
        raise ValueError(f"max_connections must be 1 or more, not {max_connections!r}")

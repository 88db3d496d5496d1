"""What the two guards share: everything but waiting."""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from fencing.core.held import Held
from fencing.core.plan import acquire_admitted, admit_lease, not_granted
from fencing.core.several import acquire_several
from fencing.hooks.ambient import BlockFence, Suspension
from fencing.keepalive import watch
from fencing.lease import BaseLease
from fencing.request import check_evict_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fencing.core.plan import Plan, PlanOfAll
    from fencing.hooks.database import Database
    from fencing.request import AcquireRequest

__all__ = ["BaseGuard", "check_engines"]

_log = logging.getLogger("fencing")

LeaseT = TypeVar("LeaseT", bound=BaseLease)


class GuardedScope:
    """The ``with`` block of a guarded lease: inside it the lease is ambient."""

    raises_loss = False

    def __init__(self, lease: BaseLease, databases: Sequence[Database]) -> None:
        self._lease_of = weakref.ref(lease)  # a circle would keep a dropped lease alive
        self.databases = databases
        self._fences: list[BlockFence] = []

    @property
    def _lease(self) -> BaseLease:
        lease = self._lease_of()
        assert lease is not None  # noqa: S101 - it is the lease that asks
        return lease

    def open(self) -> None:
        self._fences.append(BlockFence(self._lease, self.databases))
        self._fences[-1].push()

    def cut(self, depth: int) -> None:
        while len(self._fences) > depth:
            self._fences[-1].close()
            self._fences.pop()

    def close(self, *, outermost: bool) -> None:
        if self._fences:
            self._fences[-1].close()
            self._fences.pop()
        if not outermost:
            return
        for database in self.databases:
            for presentation, lease in database.presentations.open_on(self._lease.resource):
                if lease.holder == self._lease.holder:
                    _log.warning(
                        "a transaction begun under the lease on %r (token %d) is still open at "
                        "the end of its block, as PostgreSQL backend %d of %s: nothing more can "
                        "be done in it, and the next holder waits for it; commit or roll back "
                        "inside the block",
                        lease.resource, lease.token, presentation.backend_pid, database.name,
                    )  # fmt: skip


class BaseGuard(Generic[LeaseT]):
    """What the two guards share: everything but waiting."""

    def __init__(
        self, databases: Sequence[Database], evict_after: float | None, *, receipts: bool
    ) -> None:
        self.databases = tuple(dict.fromkeys(databases))
        self.evict_after = check_evict_after(evict_after)
        if receipts:
            for database in self.databases:
                database.keep_receipts()
        self._held: Held[LeaseT] = Held()

    def __repr__(self) -> str:
        names = ", ".join(database.name for database in self.databases)
        return f"<{type(self).__name__} of {names}>"

    @property
    def observed(self) -> Counter[tuple[str, str]]:
        """What guards in observe mode have let pass on this guard's engines, in this process.

        Counts by table (``"public.accounts"``) and by ``"unfenced"``, ``"stale"`` or ``"not
        admitted"``: what would be refused if the table were enforced. Each was logged as well, by
        the logger ``fencing.observed``, with the line that wrote.
        """
        return sum((database.observations.counts for database in self.databases), Counter())

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """A block in which nothing is presented on this guard's engines.

        For what must be written to unguarded tables whatever has become of the lease: an error
        handler's log, say. Guarded tables refuse its writes; leases acquired inside it are
        presented. A plain ``with``, for sync and async alike.
        """
        suspension = Suspension(self.databases)
        try:
            try:
                suspension.push()
                yield
            finally:
                suspension.close()
        finally:
            suspension.close()  # an interrupt may have come before the first line of the other one

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
            lease.scope = GuardedScope(lease, self.databases)
            self._held.note(lease)
            if request.is_kept_or_watched:
                watch(lease, request)
            return lease

        return hand_out


def check_engines(engines: Sequence[object], kind: type, name: str, other: str) -> None:
    """Raise ``TypeError`` unless there are engines, all of one kind.

    Args:
        engines: What was given.
        kind: What each must be an instance of.
        name: The guard it was given to.
        other: The guard that takes the other kind of engine.
    """
    if not engines:
        raise TypeError(f"{name} takes at least one engine: {name}(locks, engine)")
    for engine in engines:
        if not isinstance(engine, kind):
            hint = f"; use {other} with it" if isinstance(engine, Engine | AsyncEngine) else ""
            raise TypeError(
                f"{name} takes engines of type {kind.__name__}, not {type(engine).__name__}{hint}"
            )

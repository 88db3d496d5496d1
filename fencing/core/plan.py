"""How a guarded lease comes about: what to do next, and what each outcome means.

::

    lock ──► admit in every database ──► renew if little is left ──► hand it out
      ▲            │ refused: the mark is ahead
      │            ├── still ours, never admitted: raise the counter past the mark, admit again
      └────────────┴── lost, or admitted elsewhere: give it back, lock again above the mark

Admission is what completes an acquisition: until it has committed, an older holder can still
write, and what we read could be overwritten by one that was never refused. A database whose mark
is ahead of the lock service is the sign that the latter has lost its counter (a flush, an
eviction, a failover, a restored backup); raising it heals that for everyone.

A lock service that is a database itself has admitted its lease as it granted it; where that is one
of the guard's own, as its identity tells, nothing is left to be admitted. Were the identity to
deceive, the database would refuse the lease's first transaction.

Plans do no I/O. They yield steps, which :mod:`fencing.core.performing` performs; the outcome is
sent back, an exception thrown back.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from fencing.clock import now
from fencing.core.slots import NoSlotError
from fencing.errors import (
    FencingUsageError,
    LeaseLostError,
    LockNotAcquiredError,
    LockServiceError,
    StaleFenceError,
)
from fencing.request import MAX_TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fencing.lease import BaseLease
    from fencing.request import AcquireRequest

__all__ = [
    "MAX_LOCKS", "RENEW_BELOW", "Admit", "AskMark", "Evict", "GiveBack", "Identify", "Lock",
    "LockTogether", "OvertakenError", "Plan", "PlanOfAll", "PlannedDatabase", "RaiseToken", "Renew",
    "Step",
    "acquire_admitted", "admit_everywhere", "admit_lease", "not_granted", "refuse_own_leftovers",
    "remainder", "renew_if_little_is_left",
]  # fmt: skip

_MAX_HEALS = 8
"""How often one lease's token is raised before the lock service is taken for a broken one."""

MAX_LOCKS = 8
"""How many leases in a row may be lost before they are admitted."""

RENEW_BELOW = 0.5
"""Part of the ttl that must be left when a lease is handed out; otherwise it is renewed first."""


class Place(Protocol):
    """Where a transaction was begun."""

    def is_here(self) -> bool:
        """Whether this is the thread and task."""


class OpenTransaction(Protocol):
    """A transaction of this process that has presented leases and has not ended."""

    @property
    def begun_in(self) -> Place:
        """The thread and task it was begun in."""

    @property
    def backend_pid(self) -> int:
        """PostgreSQL's pid of its session."""


class OpenTransactions(Protocol):
    """The transactions of this process in one database."""

    def open_on(self, resource: str) -> Iterable[tuple[OpenTransaction, BaseLease]]:
        """Those that have presented a lease on a resource, with that lease."""


class PlannedDatabase(Protocol):
    """What a plan needs to know of a database, and what its steps are performed with."""

    @property
    def name(self) -> str:
        """The database, in messages."""

    @property
    def presentations(self) -> OpenTransactions:
        """What this process has open in it."""

    @property
    def admissions(self) -> Any:  # noqa: ANN401 - sync or async, as in fencing.core.performing
        """Who admits leases in it."""


@dataclass(frozen=True, slots=True)
class Lock:
    """Ask the lock service; the outcome is a lease, or ``None`` if the request does not wait."""

    request: AcquireRequest


@dataclass(frozen=True, slots=True)
class LockTogether:
    """Ask the lock service for several locks at once, all or none, without waiting.

    The outcome is a list of leases, the error that says which is held, or ``None`` if this lock
    service grants one lock at a time.
    """

    requests: tuple[AcquireRequest, ...]


@dataclass(frozen=True, slots=True)
class AskMark:
    """Read a database's high-water mark of a resource; the outcome is a token or ``None``."""

    database: PlannedDatabase
    resource: str


@dataclass(frozen=True, slots=True)
class Admit:
    """Commit the lease's token in a database, waiting until ``until`` at the longest."""

    database: PlannedDatabase
    lease: BaseLease
    until: float


@dataclass(frozen=True, slots=True)
class Identify:
    """Tell which database this is, in a word; the outcome is empty if it does not tell.

    ``expected`` is what the lease was admitted in: who remembers another may look again.
    """

    database: PlannedDatabase
    expected: str


@dataclass(frozen=True, slots=True)
class Evict:
    """End the backends that keep the lease's admission waiting under an older token.

    ``since`` is when it began to wait, by the database's clock; ``until`` is how long to wait for a
    connection. The outcome is their pids.
    """

    database: PlannedDatabase
    lease: BaseLease
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class RaiseToken:
    """Have the lock service give the lease a token above ``floor``."""

    lease: BaseLease
    floor: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Extend the lease to its full ttl."""

    lease: BaseLease


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Release a lease that is not handed out; nothing is raised if that fails."""

    lease: BaseLease


Step = Lock | LockTogether | AskMark | Admit | Identify | Evict | RaiseToken | Renew | GiveBack
Plan = Generator[Step, Any, "BaseLease | None"]
PlanOfAll = Generator[Step, Any, "list[BaseLease]"]


class OvertakenError(Exception):
    """A lease cannot be handed out; another one is needed, with a token above ``mark``.

    ``stale`` is what a database has said of it, if that was the reason.
    """

    def __init__(self, lease: BaseLease, mark: int, stale: StaleFenceError | None = None) -> None:
        self.resource = lease.resource
        self.mark = mark
        self.stale = stale


def acquire_admitted(
    request: AcquireRequest,
    databases: Sequence[PlannedDatabase],
    clock: Callable[[], float] = now,
    *,
    evict_after: float | None = None,
) -> Plan:
    """Plan a lease that every database has admitted.

    Args:
        request: What is asked for; its patience covers everything.
        databases: Where to admit it.
        evict_after: How long an admission waits for open transactions of older holders before
            their backends are ended, in seconds; ``None`` leaves them alone.
        clock: Tells the time, in seconds of :func:`fencing.clock.now`.

    Returns:
        The lease; ``None`` if the request does not wait and it was not to be had.

    Raises:
        LockNotAcquiredError: Not granted, or not admitted, in time.
        LockServiceError: What it granted was of no use, again and again.
    """
    began = clock()
    deadline = began + request.patience
    floor = request.floor
    for _ in range(MAX_LOCKS):
        refuse_own_leftovers(request.resource, databases)
        lease: BaseLease | None = yield Lock(remainder(request, floor, deadline - clock()))
        if lease is None:
            return None
        try:
            yield from admit_everywhere(lease, databases, deadline, clock, evict_after)
        except OvertakenError as overtaken:
            yield GiveBack(lease)
            floor = max(floor, floor_at(overtaken.mark, request.resource))
            if clock() >= deadline:
                raise LockNotAcquiredError(
                    f"the lease on {request.resource!r} was lost before it could be admitted, and "
                    "no time was left for another; try again, with a longer ttl if this recurs",
                    resource=request.resource,
                    waited=clock() - began,
                ) from None
        except LockNotAcquiredError as error:
            yield GiveBack(lease)
            error.waited = clock() - began
            raise
        except GeneratorExit:
            raise  # nobody is there to perform anything; who was interrupted gives back
        except BaseException:
            yield GiveBack(lease)
            raise
        else:
            return lease
    raise LockServiceError(
        f"the lock service has granted {request.resource!r} {MAX_LOCKS} times, and each lease was "
        "over before it could be admitted; its answers cannot be right, or the ttl of "
        f"{request.ttl} s is too short for the way to the database",
        resource=request.resource,
    )


def admit_lease(
    lease: BaseLease,
    databases: Sequence[PlannedDatabase],
    clock: Callable[[], float] = now,
    *,
    evict_after: float | None = None,
) -> Plan:
    """Plan the admission of a lease that was acquired elsewhere.

    Where a mark is ahead of a lease that was never admitted, its lock service is asked whether it
    is still held, and then to raise its token.

    Args:
        lease: The lease.
        databases: Where to admit it.
        clock: Tells the time, in seconds of :func:`fencing.clock.now`.
        evict_after: As :func:`acquire_admitted` takes it.

    Raises:
        StaleFenceError: A database's mark is ahead, and the lock is another's or the token final.
        LockNotAcquiredError: Open transactions of other holders did not end in time.
        LeaseLostError: It is over.
        LockServiceError: The lock service could not be asked for a token above the mark.
    """
    lease.raise_if_over()
    try:
        yield from _admit_in_each(lease, databases, math.inf, clock, evict_after, is_new=False)
    except OvertakenError as overtaken:
        if overtaken.stale is not None:
            raise overtaken.stale from None
    lease.raise_if_over()
    return lease


def floor_at(mark: int, resource: str) -> int:
    """The floor for a token above a mark.

    Raises:
        LockServiceError: There is no such token.
    """
    if mark >= MAX_TOKEN:
        raise LockServiceError(
            f"the mark of {resource!r} has reached 2**53 - 1, the largest token there is, so no "
            "lease on it can be newer; use another name for the resource",
            resource=resource,
        )
    return mark


def not_granted(resource: str) -> LockNotAcquiredError:
    """The error for a request that does not wait."""
    return LockNotAcquiredError(
        f"{resource!r} is held by another, and blocking=False does not wait; try again later",
        resource=resource,
    )


def admit_everywhere(
    lease: BaseLease,
    databases: Sequence[PlannedDatabase],
    deadline: float,
    clock: Callable[[], float],
    evict_after: float | None,
) -> Generator[Step, Any, None]:
    """Admit a lease in each database, raising its token where a mark is ahead.

    Raises:
        OvertakenError: Another lease is needed.
        LockNotAcquiredError: Open transactions did not end in time.
    """
    yield from _admit_in_each(lease, databases, deadline, clock, evict_after)
    yield from renew_if_little_is_left(lease, clock)


def _admit_in_each(
    lease: BaseLease,
    databases: Sequence[PlannedDatabase],
    deadline: float,
    clock: Callable[[], float],
    evict_after: float | None,
    *,
    is_new: bool = True,
) -> Generator[Step, Any, None]:
    others = yield from _left_to_admit(lease, databases)
    if (len(others) > 1 or len(others) < len(databases)) and not lease.admitted:
        # Once admitted anywhere its token is final, so it has to be above every mark first.
        highest = 0
        for database in others:
            mark: int | None = yield AskMark(database, lease.resource)
            highest = max(highest, mark or 0)
        if highest >= lease.token:
            stale = StaleFenceError(
                resource=lease.resource, token=lease.token, current_token=highest
            )
            yield from _raise_token(lease, highest, stale)
    if len(others) < len(databases):
        lease.note_admitted()
    # One that was granted some time ago may have been overtaken since: the database tells.
    for database in others if is_new else databases:
        yield from _admit_healing(database, lease, deadline, clock, evict_after)


def _left_to_admit(
    lease: BaseLease, databases: Sequence[PlannedDatabase]
) -> Generator[Step, Any, Sequence[PlannedDatabase]]:
    """The databases that have not admitted the lease as it was granted."""
    if not lease.admitted_in:
        return databases
    others: list[PlannedDatabase] = []
    for database in databases:
        identity: str = yield Identify(database, lease.admitted_in)
        if identity != lease.admitted_in:
            others.append(database)
    return others


def renew_if_little_is_left(
    lease: BaseLease, clock: Callable[[], float]
) -> Generator[Step, Any, None]:
    """Give a lease its full time again before it is handed out.

    Raises:
        OvertakenError: It is lost.
    """
    if lease.trusted_until - clock() < lease.ttl * RENEW_BELOW:
        try:
            yield Renew(lease)
        except LeaseLostError:
            raise OvertakenError(lease, lease.token) from None


def _admit_healing(
    database: PlannedDatabase,
    lease: BaseLease,
    deadline: float,
    clock: Callable[[], float],
    evict_after: float | None,
) -> Generator[Step, Any, None]:
    for _ in range(_MAX_HEALS):
        if clock() >= lease.trusted_until:
            raise OvertakenError(lease, lease.token)
        try:
            yield from _admit(database, lease, deadline, clock, evict_after)
        except StaleFenceError as stale:
            mark = stale.current_token or lease.token
            if lease.admitted:
                raise OvertakenError(lease, mark, stale) from None
            yield from _raise_token(lease, mark, stale)
        else:
            lease.note_admitted()
            return
    raise LockServiceError(
        f"the lock service has raised the token of {lease.resource!r} {_MAX_HEALS} times, and the "
        f"database's mark was ahead each time; its answers cannot be right (last: {lease.token})",
        resource=lease.resource,
    )


def _admit(
    database: PlannedDatabase,
    lease: BaseLease,
    deadline: float,
    clock: Callable[[], float],
    evict_after: float | None,
) -> Generator[Step, Any, None]:
    """One admission; it ends who keeps it waiting for too long, as often as somebody does."""
    denied: FencingUsageError | None = None
    while True:
        until = min(lease.trusted_until, deadline)
        patience = until if evict_after is None else min(until, clock() + evict_after)
        try:
            yield Admit(database, lease, patience)
        except LockNotAcquiredError as blocked:
            if evict_after is not None and _had_no_connection(blocked) and clock() < until:
                continue  # it has waited for that only as long as for those who block it
            if evict_after is None or blocked.blocked_since is None or clock() >= until:
                if lease.kept and min(lease.trusted_until, deadline) > until:
                    continue  # it was renewed while it waited
                if denied is not None:
                    blocked.add_note(f"fencing: nobody was evicted: {denied}")
                raise
            since = blocked.blocked_since
        else:
            return
        try:
            yield Evict(database, lease, since, until)
        except FencingUsageError as error:
            denied = error  # they may still end by themselves


def _had_no_connection(error: LockNotAcquiredError) -> bool:
    return isinstance(error.__cause__, NoSlotError)


def _raise_token(lease: BaseLease, mark: int, stale: StaleFenceError) -> Generator[Step, Any, None]:
    try:
        yield RaiseToken(lease, floor_at(mark, lease.resource))
    except LeaseLostError:
        raise OvertakenError(lease, mark, stale) from None


def remainder(request: AcquireRequest, floor: int, left: float) -> AcquireRequest:
    """The same request with what is left of its patience, in seconds."""
    if request.blocking and request.blocking_timeout is not None:
        return dataclasses.replace(request, floor=floor, blocking_timeout=max(0.0, left))
    return dataclasses.replace(request, floor=floor)


def refuse_own_leftovers(resource: str, databases: Sequence[PlannedDatabase]) -> None:
    """Raise when a transaction of this very process would keep the admission waiting for ever.

    That is one of this thread or task, which cannot end it while it waits for us, or one whose
    lease has been released: it was left open when its block ended.
    """
    for database in databases:
        for presentation, lease in database.presentations.open_on(resource):
            if lease.released or presentation.begun_in.is_here():
                raise LockNotAcquiredError(
                    f"a transaction that this process has begun under an earlier lease on "
                    f"{resource!r} (token {lease.token}) is still open on {database.name}, as "
                    f"PostgreSQL backend {presentation.backend_pid}: the admission would wait "
                    "for it; commit, roll back or close its session first",
                    resource=resource,
                    blocked_by=(presentation.backend_pid,),
                )

"""What happened in a run: what the database accepted, and what each worker was told."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence  # noqa: TC003 - dataclasses' annotations
from dataclasses import dataclass

__all__ = [
    "Acquisition",
    "Admission",
    "Believed",
    "Fault",
    "Final",
    "Harm",
    "History",
    "Outcome",
    "Read",
    "Transaction",
    "Write",
]


class Outcome(enum.StrEnum):
    """How a transaction ended, as far as its worker was told."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    """By the worker's own wish."""
    REFUSED = "refused"
    """By the guard, on either side: stale, unfenced, expired, or ended by a limit."""
    CONFLICT = "conflict"
    """A conflict of its own (40001, 40P01): retryable, and not fencing's business."""
    FAILED = "failed"
    """By the fault of a server or the network, before COMMIT was sent."""
    UNKNOWN = "unknown"
    """The connection was lost during COMMIT."""
    CUT_OFF = "cut off"
    """The worker was killed in it."""


@dataclass(frozen=True, slots=True)
class Write:
    """A row of ``torture.write``: an accepted change of one row.

    Attributes:
        seq: Its place among the writes of its row and the admissions of its resource.
        xid: The transaction's id in the database.
        transaction: Which of the workers' transactions did it; ``None`` if it did not say.
        resource: What the row needs a lease on.
        row: The row, such as ``"register:3/0"``, ``"set:1"`` or ``"account:2"``.
        change: ``"insert"``, ``"update"`` or ``"delete"``.
        old: The row's number before: a register's value, an account's version; of an element that
            is inserted into or deleted from a set ``None``.
        new: The number after: likewise; an element's number in its set; ``None`` if deleted.
        gone: The number of the element that was deleted; ``None`` of everything else.
        amount: What an account's balance changed by; else 0.
        token: Of the lease that the transaction says it has on the resource, if any.
        holder: Of that lease.
    """

    seq: int
    xid: int
    transaction: str | None
    resource: str
    row: str
    change: str
    old: int | None
    new: int | None
    gone: int | None
    amount: int
    token: int | None
    holder: str | None


@dataclass(frozen=True, slots=True)
class Admission:
    """A row of ``torture.admission``: a committed change of a fence.

    Attributes:
        seq: Its place among the writes and admissions of its resource.
        xid: The transaction's id in the database.
        resource: The resource.
        token: The mark from now on; of a pruned fence the mark it had.
        holder: Its holder (as the fence has it); empty if nobody's, as after a raise by hand.
        pruned: Whether the fence was removed rather than raised.
    """

    seq: int
    xid: int
    resource: str
    token: int
    holder: str
    pruned: bool = False


@dataclass(frozen=True, slots=True)
class Believed:
    """A lease, and the time for which its worker believed in it.

    Attributes:
        resource: The resource.
        token: The token it had in the end.
        holder: Its nonce.
        since: When the worker had it, in seconds of :func:`fencing.clock.now`, one clock for all
            processes of a machine.
        until: The end of its trust as last known, or when its release began, if that was earlier.
        trusted_until: The end of its trust as last known, released or not.
    """

    resource: str
    token: int
    holder: str
    since: float
    until: float
    trusted_until: float | None = None


@dataclass(frozen=True, slots=True)
class Acquisition:
    """What became of asking for leases.

    Attributes:
        name: Worker and number, such as ``"w2.1:17"``.
        worker: The worker, such as ``"w2.1"``: the second process of worker 2.
        resources: What was asked for.
        asked_at: When, in seconds of :func:`fencing.clock.now`.
        answered_at: When it was granted or not; ``None`` if the worker was killed before.
        leases: What was granted, by resource; empty if nothing.
        error: The error's type, if it was not granted.
        message: What the error says.
        blocked_by: PostgreSQL's processes that were in the way, as the error says.
        patience: The longest wait that was asked for, in seconds.
        ttl: Length of the leases, in seconds.
        admission_began_at: When the lock service had granted them and their admission began, as far
            as that was seen; in seconds of :func:`fencing.clock.now`.
        evicts: Whether it may end the sessions in its way.
    """

    name: str
    worker: str
    resources: tuple[str, ...]
    asked_at: float
    answered_at: float | None
    leases: Mapping[str, Believed]
    error: str | None = None
    message: str = ""
    blocked_by: tuple[int, ...] = ()
    patience: float = 0.0
    ttl: float = 0.0
    admission_began_at: float | None = None
    evicts: bool = False


@dataclass(frozen=True, slots=True)
class Read:
    """A number that a transaction read.

    Attributes:
        resource: What the row needs a lease on.
        row: The row, as in `Write`; of a set the largest number in it.
        value: What was read; 0 of an empty set.
    """

    resource: str
    row: str
    value: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """What a worker was told of one of its transactions.

    Attributes:
        name: Acquisition and number, such as ``"w2.1:17.3"``.
        worker: The worker.
        acquisition: Under whose leases; ``None`` if it presented none.
        kind: What it did: ``"add"``, ``"append"``, ``"transfer"``; ``"look"`` and ``"stream"`` only
            read; ``"readmission"`` only admits its leases again; ``"unfenced"`` and ``"leaked"``
            are attempts that must be refused.
        path: The way to the database: ``"orm"``, ``"core"``, ``"psycopg"``, ``"async"`` ...
        isolation: ``"READ COMMITTED"`` ...
        began_at: When it began, in seconds of :func:`fencing.clock.now`.
        ended_at: When the worker was told; ``None`` if it was killed before.
        leases: Token and holder of the leases it was done under, by resource.
        reads: What it read, in order.
        outcome: How it ended.
        error: The error's type, if there was one.
        message: What the error says.
        current_token: The mark that a stale transaction was told of.
        resolved: What a transaction whose outcome was unknown was found to have become, if it was
            asked: ``"committed"``, ``"rolled back"`` or ``"unknown"``.
        changes: The rows it changes if it gets so far, each once; empty: those that it reads.
    """

    name: str
    worker: str
    acquisition: str | None
    kind: str
    path: str
    isolation: str
    began_at: float
    ended_at: float | None
    leases: Mapping[str, tuple[int, str]]
    reads: tuple[Read, ...]
    outcome: Outcome
    error: str | None = None
    message: str = ""
    current_token: int | None = None
    resolved: str | None = None
    changes: tuple[str, ...] = ()


class Harm(enum.StrEnum):
    """What a fault may do harm to: who may be excused by it."""

    WORKER = "worker"
    """Its target stands still, or ends."""
    LOCK_SERVICE = "lock service"
    """It is slow, unreachable, or has forgotten who holds what."""
    DATABASE = "database"
    """It is slow, or unreachable."""
    SESSIONS = "sessions"
    """Sessions of the database were ended, whoever's they were."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the run.

    Attributes:
        kind: Which fault, such as ``"worker stopped"``.
        target: To whom.
        since: When it began, in seconds of :func:`fencing.clock.now`.
        until: When it ended; of a moment the same.
        harms: What may go wrong by it, while it lasts and for a lease's length after.
    """

    kind: str
    target: str
    since: float
    until: float
    harms: frozenset[Harm] = frozenset()


@dataclass(frozen=True, slots=True)
class Final:
    """What is in the database at the end.

    Attributes:
        rows: The number of each row: a register's value, an account's version, a set's largest.
        balances: Of each account, by row.
        elements: How often each number is in a set, by row.
        marks: The high-water mark of each resource that has one: of its fence, or else the floor
            of those that were pruned.
    """

    rows: Mapping[str, int]
    balances: Mapping[str, int]
    elements: Mapping[str, Mapping[int, int]]
    marks: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class History:
    """A whole run.

    Attributes:
        writes: What was accepted, by `Write.seq`.
        admissions: Likewise, by `Admission.seq`.
        acquisitions: What workers asked for, by time.
        transactions: What workers did, by time.
        faults: What was done to them.
        final: What there is at the end.
        initial_balance: Of each account at the beginning.
        lock_service: Who granted the leases, such as ``"redis"``.
        keeps_order: Whether the lock service was without fault, so that of two leases on one
            resource no two are believed in at a time.
        loses_acknowledged: Whether the database itself lost what it had acknowledged (a standby
            that lags was promoted): the one thing that no guard can mend.
        lingers: How much longer than a lease the lock service may wait for somebody who is gone,
            in seconds.
        seconds: How long workers worked, in seconds.
        interrupted: Whether that was ended early.
    """

    writes: Sequence[Write]
    admissions: Sequence[Admission]
    acquisitions: Sequence[Acquisition]
    transactions: Sequence[Transaction]
    faults: Sequence[Fault]
    final: Final
    initial_balance: int
    lock_service: str
    keeps_order: bool
    loses_acknowledged: bool = False
    lingers: float = 0.0
    seconds: float = 0.0
    interrupted: bool = False

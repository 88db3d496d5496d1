"""Histories as a correct run would leave them: a little database, and the leases on it.

`World` does what workers, a lock service and a guarded database do, one thing after the other, on a
clock of its own. What it records is healthy by construction; tests break it afterwards.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fencing.torture.history import (
    Acquisition,
    Admission,
    Believed,
    Fault,
    Final,
    Harm,
    History,
    Outcome,
    Read,
    Transaction,
    Write,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "REGISTER",
    "TTL",
    "World",
    "a_set",
    "a_transfer",
    "healthy",
    "resource_of",
    "two_leases",
]

INITIAL_BALANCE = 100

TTL = 0.5
"""Length of all leases, in seconds."""

REGISTER = "register:0/0"
"""The row that most is done to."""


def resource_of(row: str) -> str:
    """The resource that a row needs a lease on: ``"register:3"`` of ``"register:3/0"``."""
    return row.partition("/")[0]


@dataclass
class World:
    """A run in the making.

    Attributes:
        now: The moment, in seconds.
    """

    now: float = 1000.0
    accounts: int = 2

    def __post_init__(self) -> None:
        self.writes: list[Write] = []
        self.admissions: list[Admission] = []
        self.acquisitions: dict[str, Acquisition] = {}
        self.transactions: list[Transaction] = []
        self.faults: list[Fault] = []
        self.numbers: Counter[str] = Counter()
        self.elements: dict[str, Counter[int]] = {}
        self.balances = {f"account:{n}": INITIAL_BALANCE for n in range(self.accounts)}
        self.marks: dict[str, tuple[int, str]] = {}
        self.floors: dict[str, int] = {}
        self.held: dict[str, str] = {}
        self._seq = self._xid = 0

    # -------------------------------------------------------------------------- leases

    def acquire(
        self, *resources: str, worker: str = "w0.1", patience: float = 5.0, keep: bool = True
    ) -> str:
        """Grant leases, when the trust in those before has ended; return the acquisition's name."""
        asked_at = self.tick()
        for resource in resources:
            if (holder := self.held.get(resource)) is not None:
                until = self.acquisitions[holder].leases[resource].until
                self.now = max(self.now, until + 0.001)
        name = f"{worker}:{len(self.acquisitions)}"
        leases = {}
        for resource in resources:
            token = 1 + max(self.marks.get(resource, (0, ""))[0], self.floors.get(resource, 0))
            holder = f"holder of {name}"
            self.admit(resource, token, holder)
            since = self.tick()
            leases[resource] = Believed(resource, token, holder, since, since + TTL)
            self.held[resource] = name
        answered_at = self.tick() if keep else None
        self.acquisitions[name] = Acquisition(
            name, worker, resources, asked_at, answered_at, leases, patience=patience, ttl=TTL
        )
        return name

    def admit(self, resource: str, token: int, holder: str, *, pruned: bool = False) -> Admission:
        """Write down that a fence has changed."""
        admission = Admission(
            self._next_seq(), self._next_xid(), resource, token, holder, pruned=pruned
        )
        self.admissions.append(admission)
        self.marks[resource] = (token, holder)
        return admission

    def deny(self, *resources: str, worker: str = "w9.1", **fields: Any) -> str:
        """Ask for leases in vain: somebody has them, for as long as one waits."""
        name = f"{worker}:{len(self.acquisitions)}"
        since = self.tick()
        for resource in resources:
            self.keep(self.held[resource], self.now + 0.2)
        acquisition = Acquisition(
            name, worker, resources, since, self.tick(), {}, "LockNotAcquiredError", ttl=TTL
        )
        self.acquisitions[name] = replace(acquisition, **fields)
        return name

    def keep(self, name: str, until: float) -> None:
        """Renew an acquisition's leases, until this moment at least."""
        acquisition = self.acquisitions[name]
        leases = {
            resource: replace(lease, until=max(lease.until, until))
            for resource, lease in acquisition.leases.items()
        }
        self.acquisitions[name] = replace(acquisition, leases=leases)

    def release(self, name: str) -> None:
        """Give the leases back."""
        at = self.tick()
        acquisition = self.acquisitions[name]
        leases = {
            resource: replace(lease, until=min(lease.until, at))
            for resource, lease in acquisition.leases.items()
        }
        self.acquisitions[name] = replace(acquisition, leases=leases)
        for resource in acquisition.resources:
            if self.held.get(resource) == name:
                del self.held[resource]

    def prune(self, resource: str) -> None:
        """Remove a fence that nobody holds a lease on; its mark becomes a floor."""
        token, holder = self.marks.pop(resource)
        self.admit(resource, token, holder, pruned=True)
        del self.marks[resource]
        self.floors[resource] = token

    def overtaken(self, name: str) -> bool:
        """Whether the database would refuse what is done under these leases."""
        return any(
            self.marks.get(resource) != (lease.token, lease.holder)
            for resource, lease in self.acquisitions[name].leases.items()
        )

    # -------------------------------------------------------------------- transactions

    def add(self, name: str, *rows: str, **fields: Any) -> Transaction:
        """Add one to each of these registers."""
        return self._transaction(name, "add", rows, **fields)

    def append(self, name: str, row: str, *, gone: int | None = None, **fields: Any) -> Transaction:
        """Append the next number to a set; perhaps delete another."""
        return self._transaction(name, "append", (row,), gone=gone, **fields)

    def transfer(self, name: str, source: str, target: str, **fields: Any) -> Transaction:
        """Move 7 from one account to another."""
        return self._transaction(name, "transfer", (source, target), **fields)

    def look(self, name: str, *rows: str, **fields: Any) -> Transaction:
        """Only read."""
        return self._transaction(name, "look", rows, **fields)

    def readmit(self, name: str, **fields: Any) -> Transaction:
        """Admit leases that are admitted already."""
        return self._transaction(name, "readmission", (), **fields)

    def attempt(self, kind: str, row: str, **fields: Any) -> Transaction:
        """Try to write without a lease, or with one that has leaked; it is refused."""
        fields = {"outcome": Outcome.REFUSED, "error": "UnfencedWriteError", **fields}
        return self._transaction(None, kind, (row,), **fields)

    def refuse(self, name: str, row: str, **fields: Any) -> Transaction:
        """Try to add under a lease that has been overtaken."""
        current = self.marks[resource_of(row)][0]
        fields = {
            "outcome": Outcome.REFUSED,
            "error": "StaleFenceError",
            "current_token": current,
            **fields,
        }
        return self._transaction(name, "add", (row,), **fields)

    def _transaction(
        self,
        name: str | None,
        kind: str,
        rows: Iterable[str],
        *,
        outcome: Outcome = Outcome.COMMITTED,
        happened: bool | None = None,
        gone: int | None = None,
        **fields: Any,
    ) -> Transaction:
        """Do a transaction, and write down what its worker was told.

        Args:
            name: Under whose leases.
            kind: What it does.
            rows: To what.
            outcome: What the worker is told.
            happened: Whether it is in the database; default: if it was told that it is.
            gone: An element to delete.
            fields: Further fields of the `Transaction`.
        """
        began_at = self.tick()
        acquisition = self.acquisitions.get(name or "")
        granted = acquisition.leases.items() if acquisition else ()
        leases = {resource: (lease.token, lease.holder) for resource, lease in granted}
        number = f"{name or 'nobody'}.{len(self.transactions)}"
        reads = tuple(Read(resource_of(row), row, self.number(row)) for row in rows)
        if happened is None:
            happened = outcome is Outcome.COMMITTED
        self.tick()
        if happened and kind != "look":
            self._write(number, kind, reads, leases, gone)
        ended_at = None if outcome is Outcome.CUT_OFF else self.tick()
        transaction = Transaction(
            number,
            acquisition.worker if acquisition else "w8.1",
            name,
            kind,
            "core",
            "READ COMMITTED",
            began_at,
            ended_at,
            leases,
            reads,
            outcome,
        )
        transaction = replace(transaction, **fields)
        self.transactions.append(transaction)
        return transaction

    def _write(
        self,
        transaction: str,
        kind: str,
        reads: Iterable[Read],
        leases: dict[str, tuple[int, str]],
        gone: int | None,
    ) -> None:
        xid = self._next_xid()

        def written(read: Read, change: str, **fields: Any) -> None:
            token, holder = leases.get(read.resource, (None, None))
            write = Write(
                self._next_seq(), xid, transaction, read.resource, read.row, change,
                None, None, None, 0, token, holder,
            )  # fmt: skip
            self.writes.append(replace(write, **fields))

        for place, read in enumerate(reads):
            if kind == "append":
                elements = self.elements.setdefault(read.row, Counter())
                written(read, "insert", new=read.value + 1)
                elements[read.value + 1] += 1
                if gone is not None:
                    written(read, "delete", gone=gone)
                    elements[gone] -= 1
                continue
            amount = (-7, 7)[place] if kind == "transfer" else 0
            written(read, "update", old=read.value, new=read.value + 1, amount=amount)
            self.numbers[read.row] = read.value + 1
            if amount:
                self.balances[read.row] += amount

    def number(self, row: str) -> int:
        """What is read of a row."""
        if row.startswith("set:"):
            return max(+self.elements.get(row, Counter()), default=0)
        return self.numbers[row]

    # --------------------------------------------------------------------------- rest

    def fault(self, kind: str, target: str, *harms: Harm, lasts: float = 0.0) -> None:
        """Do harm, now."""
        self.faults.append(Fault(kind, target, self.now, self.now + lasts, frozenset(harms)))

    def tick(self, seconds: float = 0.001) -> float:
        """Let time pass."""
        self.now += seconds
        return self.now

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _next_xid(self) -> int:
        self._xid += 1
        return self._xid

    def history(self, **fields: Any) -> History:
        """What there is to check."""
        rows = {**dict.fromkeys(self.balances, 0), **self.numbers}
        rows |= {row: self.number(row) for row in self.elements}
        marks = {**self.floors, **{each: mark[0] for each, mark in self.marks.items()}}
        history = History(
            tuple(self.writes),
            tuple(self.admissions),
            tuple(self.acquisitions.values()),
            tuple(self.transactions),
            tuple(self.faults),
            Final(
                rows,
                dict(self.balances),
                {row: dict(+each) for row, each in self.elements.items()},
                marks,
            ),
            INITIAL_BALANCE,
            "simulated",
            keeps_order=True,
        )
        return replace(history, **fields)


def healthy() -> World:
    """A little of everything that a correct run has."""
    world = World()
    a = world.acquire("register:0", "set:0", worker="w1.1")
    world.add(a, REGISTER)
    world.add(a, REGISTER, outcome=Outcome.ROLLED_BACK)
    world.add(a, REGISTER, "register:0/1")
    world.look(a, REGISTER)
    for _ in range(3):
        world.append(a, "set:0")
    world.append(a, "set:0", gone=1)
    world.attempt("unfenced", REGISTER)
    world.attempt("leaked", REGISTER)
    world.fault("worker stopped", "w1.1", Harm.WORKER, lasts=1.0)
    b = world.acquire("register:0", "set:0", worker="w2.1")
    world.refuse(a, REGISTER)
    world.add(b, REGISTER)
    world.append(b, "set:0")
    world.look(b, REGISTER, "set:0")
    world.release(b)
    c = world.acquire("account:0", "account:1", worker="w3.1")
    world.transfer(c, "account:0", "account:1")
    world.transfer(c, "account:1", "account:0", outcome=Outcome.CONFLICT)
    world.transfer(c, "account:1", "account:0", outcome=Outcome.UNKNOWN, happened=True)
    world.transfer(
        c, "account:1", "account:0", outcome=Outcome.UNKNOWN, happened=True, resolved="committed"
    )
    world.transfer(c, "account:1", "account:0", outcome=Outcome.UNKNOWN, resolved="rolled back")
    world.transfer(c, "account:1", "account:0", outcome=Outcome.UNKNOWN, resolved="unknown")
    world.transfer(c, "account:1", "account:0", outcome=Outcome.CUT_OFF, happened=True)
    world.transfer(c, "account:1", "account:0", outcome=Outcome.CUT_OFF)
    world.deny("account:0")
    d = world.acquire("register:0", worker="w2.1")
    world.add(d, REGISTER, outcome=Outcome.CUT_OFF, happened=True)
    world.add(d, REGISTER, outcome=Outcome.CUT_OFF)
    world.look(d, REGISTER)
    world.release(d)
    world.prune("register:0")
    e = world.acquire("register:0", worker="w2.2")
    world.add(e, REGISTER)
    return world


def two_leases() -> World:
    """One after the other on a register, each with a write; the second has a third write to do."""
    world = World()
    world.add(world.acquire("register:0", worker="w1.1"), REGISTER)
    world.add(world.acquire("register:0", worker="w2.1"), REGISTER)
    return world


def a_set() -> World:
    """Three elements, of which the first was deleted when the third came."""
    world = World()
    a = world.acquire("set:0")
    world.append(a, "set:0")
    world.append(a, "set:0")
    world.append(a, "set:0", gone=1)
    return world


def a_transfer() -> World:
    """From one account to another, and back by halves."""
    world = World()
    world.transfer(world.acquire("account:0", "account:1"), "account:0", "account:1")
    return world

"""Units of work: leases, some transactions under them, and what is written down of it all."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fencing.errors import CommitOutcomeUnknownError, FencingError, FencingUsageError
from fencing.torture import points
from fencing.torture.driver import is_conflict
from fencing.torture.history import Outcome
from fencing.torture.settings import ISOLATION_LEVELS
from fencing.torture.steps import (
    Acquire,
    Leak,
    Readmit,
    Release,
    Resolve,
    Together,
    Transact,
    Trespass,
)
from fencing.torture.tables import PARTS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from fencing.lease import BaseLease
    from fencing.torture.points import Points
    from fencing.torture.recording import Record
    from fencing.torture.rows import Rows
    from fencing.torture.settings import Plan
    from fencing.torture.steps import Step

__all__ = ["KINDS", "UNIT_KINDS", "Kind", "Unit", "Worker"]

_WEIGHTS = {
    "add": 40, "append": 20, "transfer": 20, "look": 7, "together": 5, "unfenced": 3,
    "add to known": 2, "leaked": 2, "stream": 1,
}  # fmt: skip
UNIT_KINDS = tuple(_WEIGHTS)
_GOES_ON = (Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.CONFLICT)
"""After these its leases may be good for more."""
MUST_BE_REFUSED = ("unfenced", "leaked")
_PATIENCE = 12.0
"""How long a worker waits for a lease, in leases."""
_MANY = 30
"""Most transactions under one lease."""


class UndoneError(Exception):
    """The worker's own wish: what was written is rolled back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Leases, and what is done under them.

    Attributes:
        kind: What each transaction does; see `KINDS`.
        kinds: What its first transactions do, if that is something else each.
        targets: Numbers of the registers, sets or accounts.
        part: Of the register; chosen anew for each transaction by default.
        transactions: How many there are.
        keepalive: Whether the leases are renewed in the background.
        isolation: Of each transaction; chosen anew for each by default.
        readmitted: Whether the leases are admitted again before each transaction but the first.
        undone: How likely a transaction is rolled back, from 0 to 1.
        patience: Longest wait for the leases, in seconds.
        ttl: Of the leases, in seconds.
    """

    kind: str
    targets: tuple[int, ...]
    kinds: tuple[str, ...] = ()
    part: int | None = None
    transactions: int = 1
    readmitted: bool = False
    keepalive: bool = False
    isolation: str | None = None
    undone: float = 0.0
    patience: float = 10.0
    ttl: float = 0.5

    @property
    def resources(self) -> tuple[str, ...]:
        """What leases are needed on."""
        return tuple(f"{KINDS[self.kind].noun}:{number}" for number in self.targets)

    def kind_of(self, number: int) -> str:
        """What its transaction of that number does, counted from 1."""
        return self.kinds[number - 1] if number <= len(self.kinds) else self.kind


@dataclass(slots=True)
class _Seen:
    """What one transaction has come to.

    Attributes:
        before: What was read by the transactions before, under the same leases; by row.
        committing: Whether COMMIT may have been sent.
        reads: What it has read: resource, row and value.
    """

    before: Mapping[str, int]
    committing: bool = False
    reads: list[tuple[str, str, int]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Begun:
    """A transaction that was begun: what it is called, what it does and how, and its coming to."""

    name: str
    kind: Kind
    isolation: str
    body: Callable[[Rows], None]
    seen: _Seen


class Worker:
    """Chooses units, and decides their steps.

    Args:
        plan: What it was told.
        record: What it writes down.
        points: The points it comes to.
    """

    def __init__(self, plan: Plan, record: Record, points: Points) -> None:
        self.plan = plan
        self.record = record
        self.points = points
        self._chance = random.Random(f"work {plan.seed}")  # noqa: S311 - to be repeated
        self._number = 0
        self._known: dict[str, int] = {}
        self.path = plan.path
        self.committing = False
        """Whether a COMMIT may be under way; for the point at which its answer is awaited."""

    def choose(self) -> Unit:
        """What to do next."""
        chance, settings = self._chance, self.plan.settings
        kind = chance.choices(UNIT_KINDS, list(_WEIGHTS.values()))[0]
        if not settings.guarded and kind in MUST_BE_REFUSED:
            kind = "add"  # nobody would refuse it, and it is the holders that shall be seen to fail
        match kind:
            case "append":
                targets = [chance.randint(1, settings.sets)]
            case "transfer":
                targets = chance.sample(range(1, settings.accounts + 1), 2)
            case _:
                targets = [chance.randint(1, settings.registers)]
        transactions = chance.choice((1, 1, 2, 5, chance.randint(1, _MANY)))
        to_known = kind == "add to known"
        return Unit(
            kind=kind,
            kinds=("look",) if to_known else (),
            targets=tuple(targets),
            # What it knows is good once.
            transactions=2 if to_known else transactions,
            readmitted=settings.guarded and chance.random() < 0.1,  # noqa: PLR2004 - some are
            keepalive=chance.random() < 0.3,  # noqa: PLR2004 - some do, most do not
            undone=0.05,
            patience=settings.ttl * _PATIENCE,
            ttl=settings.ttl,
        )

    def work(self, unit: Unit) -> Generator[Step, Any, None]:
        """The steps of a unit; whoever performs them throws errors back in."""
        self._number += 1
        name = f"{self.plan.worker}:{self._number}"
        self._known = {}
        if KINDS[unit.kind].step is Trespass:
            yield from self._transact(unit, name, 1, ())
            return
        leases: Sequence[BaseLease]
        self.record(
            "asked", acquisition=name, resources=unit.resources, patience=unit.patience,
            ttl=unit.ttl, evicts=self.plan.evict_after is not None,
        )  # fmt: skip
        self.points.reach(points.ASKING)
        try:
            leases = yield Acquire(unit.resources, unit.ttl, unit.patience, unit.keepalive)
        except FencingUsageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the checkers judge it
            self.record("not granted", acquisition=name, **_said(error))
            return
        self.record("granted", acquisition=name, leases=_beliefs(leases))
        self.points.reach(points.ADMITTED)
        try:
            for number in range(1, unit.transactions + 1):
                self.points.reach(points.BEGINNING)
                if unit.readmitted and number > 1:
                    yield from self._readmit(name, number, leases)
                transact = self._transact_together if unit.kind == "together" else self._transact
                outcome = yield from transact(unit, name, number, leases)
                if outcome not in _GOES_ON:
                    break
            self.points.reach(points.DONE)
        finally:
            self.record("releasing", acquisition=name, leases=_beliefs(leases))
            try:
                yield Release()
            except Exception as error:  # noqa: BLE001 - as above
                self.record("release failed", acquisition=name, **_said(error))
            else:
                self.record("released", acquisition=name)

    def _transact(
        self, unit: Unit, acquisition: str, number: int, leases: Sequence[BaseLease]
    ) -> Generator[Step, Any, Outcome]:
        begun = self._begin(unit, f"{acquisition}.{number}", number, leases)
        failure: BaseException | None = None
        try:
            yield begun.kind.step(begun.isolation, begun.body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the checkers judge it
            failure = error
        return (yield from self._end(begun, failure, leases))

    def _transact_together(
        self, unit: Unit, acquisition: str, number: int, leases: Sequence[BaseLease]
    ) -> Generator[Step, Any, Outcome]:
        """One in each part of a register, at a time: the lease covers both."""
        all_begun = [
            self._begin(replace(unit, part=part), f"{acquisition}.{number}-{part}", number, leases)
            for part in range(PARTS)
        ]
        failures = yield Together(tuple(Transact(one.isolation, one.body) for one in all_begun))
        outcomes = []
        for begun, failure in zip(all_begun, failures, strict=True):
            outcomes.append((yield from self._end(begun, failure, leases)))
        return next((one for one in outcomes if one not in _GOES_ON), Outcome.COMMITTED)

    def _begin(self, unit: Unit, name: str, number: int, leases: Sequence[BaseLease]) -> _Begun:
        kind = KINDS[unit.kind_of(number)]
        isolation = unit.isolation or self._chance.choice(ISOLATION_LEVELS)
        seen = _Seen(dict(self._known))
        presented = {lease.resource: (lease.token, lease.holder) for lease in leases}
        self.record(
            "began", transaction=name,
            acquisition=name.rpartition(".")[0] if leases else None,
            kind=kind.said or unit.kind_of(number), path=self.path, isolation=isolation,
            leases=presented,
        )  # fmt: skip
        undo = self._chance.random() < unit.undone

        def body(rows: Rows) -> None:
            rows.say(name, presented)
            kind.work(unit, rows, seen, self.points, self._chance)
            self.points.reach(points.WRITTEN)
            if undo:
                raise UndoneError
            seen.committing = self.committing = True

        return _Begun(name, kind, isolation, body, seen)

    def _end(
        self, begun: _Begun, failure: BaseException | None, leases: Sequence[BaseLease]
    ) -> Generator[Step, Any, Outcome]:
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        seen = begun.seen
        outcome = Outcome.COMMITTED if failure is None else self._outcome_of(failure, seen)
        self.committing = False
        self._known |= {row: value for _, row, value in seen.reads}
        self.record(
            "told", transaction=begun.name, outcome=outcome, reads=seen.reads,
            leases={lease.resource: (lease.token, lease.holder) for lease in leases},
            **({} if failure is None else _said(failure)),
        )  # fmt: skip
        if isinstance(failure, CommitOutcomeUnknownError):
            known = yield Resolve(failure)
            self.record("resolved", transaction=begun.name, outcome=known)
        return outcome

    def _readmit(
        self, acquisition: str, number: int, leases: Sequence[BaseLease]
    ) -> Generator[Step, Any, None]:
        """Written down as a transaction that neither reads nor writes."""
        name = f"{acquisition}.{number}-admission"
        presented = {lease.resource: (lease.token, lease.holder) for lease in leases}
        self.record(
            "began", transaction=name, acquisition=acquisition, kind="readmission",
            path=self.path, isolation="READ COMMITTED", leases=presented,
        )  # fmt: skip
        outcome = Outcome.COMMITTED
        failure: Exception | None = None
        try:
            yield Readmit()
        except Exception as error:  # noqa: BLE001 - as above
            outcome, failure = self._outcome_of(error, _Seen({})), error
        self.record(
            "told", transaction=name, outcome=outcome, reads=(), leases=presented,
            **({} if failure is None else _said(failure)),
        )  # fmt: skip

    def _outcome_of(self, error: Exception, seen: _Seen) -> Outcome:
        if isinstance(error, UndoneError):
            return Outcome.ROLLED_BACK
        if isinstance(error, CommitOutcomeUnknownError):
            return Outcome.UNKNOWN
        if isinstance(error, FencingError):
            return Outcome.REFUSED
        if is_conflict(error):
            return Outcome.CONFLICT
        if seen.committing and not self.plan.settings.guarded:
            return Outcome.UNKNOWN  # without a guard nobody tells
        return Outcome.FAILED


def _add(unit: Unit, rows: Rows, seen: _Seen, at: Points, chance: random.Random) -> None:
    number, part = _register(unit, chance)
    value = rows.register(number, part)
    seen.reads.append((f"register:{number}", f"register:{number}/{part}", value))
    at.reach(points.READ)
    rows.set_register(number, part, value + 1)


def _add_to_known(unit: Unit, rows: Rows, seen: _Seen, _: Points, chance: random.Random) -> None:
    """What is read in one transaction may be written in another, under one lease."""
    number, part = _register(unit, chance)
    row = f"register:{number}/{part}"
    value = seen.before[row]
    seen.reads.append((f"register:{number}", row, value))
    rows.set_register(number, part, value + 1)


def _register(unit: Unit, chance: random.Random) -> tuple[int, int]:
    part = chance.randint(0, 1)
    return unit.targets[0], part if unit.part is None else unit.part


def _append(unit: Unit, rows: Rows, seen: _Seen, at: Points, _: random.Random) -> None:
    (number,) = unit.targets
    largest = rows.largest(number)
    seen.reads.append((f"set:{number}", f"set:{number}", largest))
    at.reach(points.READ)
    rows.append(number, largest + 1)


def _transfer(unit: Unit, rows: Rows, seen: _Seen, at: Points, chance: random.Random) -> None:
    amount = chance.randint(1, 10)
    found = [rows.account(number) for number in unit.targets]
    for number, (_, version) in zip(unit.targets, found, strict=True):
        seen.reads.append((f"account:{number}", f"account:{number}", version))
    at.reach(points.READ)
    for number, (balance, version), change in zip(
        unit.targets, found, (-amount, amount), strict=True
    ):
        rows.set_account(number, balance + change, version + 1)


def _look(unit: Unit, rows: Rows, seen: _Seen, at: Points, _: random.Random) -> None:
    number = unit.targets[0]
    for part in (0, 1):
        value = rows.register(number, part)
        seen.reads.append((f"register:{number}", f"register:{number}/{part}", value))
    at.reach(points.READ)


def _look_long(unit: Unit, rows: Rows, seen: _Seen, at: Points, chance: random.Random) -> None:
    _look(unit, rows, seen, at, chance)
    rows.read_much(partial(at.reach, points.MID_RESULT))


@dataclass(frozen=True, slots=True)
class Kind:
    """What a transaction can do.

    Attributes:
        work: Does it.
        noun: What its leases are on.
        step: How it is done.
        said: What the history calls it; by default as it is called here.
    """

    work: Callable[[Unit, Rows, _Seen, Points, random.Random], None]
    noun: str = "register"
    step: type[Transact | Trespass | Leak] = Transact
    said: str | None = None


KINDS: dict[str, Kind] = {
    "add": Kind(_add),
    "add to known": Kind(_add_to_known, said="add"),
    "together": Kind(_add, said="add"),
    "append": Kind(_append, "set"),
    "transfer": Kind(_transfer, "account"),
    "look": Kind(_look),
    "stream": Kind(_look_long),
    "unfenced": Kind(_add, step=Trespass),
    "leaked": Kind(_add, step=Leak),
}


def _beliefs(leases: Sequence[BaseLease]) -> list[dict[str, Any]]:
    """What leases say of themselves, by the clock of the records."""
    return [
        {
            "resource": lease.resource,
            "token": lease.token,
            "holder": lease.holder,
            "until": lease.trusted_until,
        }
        for lease in leases
    ]


def _said(error: Exception) -> dict[str, Any]:
    return {
        "error": type(error).__name__,
        "message": str(error).partition("\n")[0],
        "current_token": getattr(error, "current_token", None),
        "blocked_by": list(getattr(error, "blocked_by", ())),
    }

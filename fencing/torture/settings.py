"""What a run is, and what each of its processes is told."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any, Self

from fencing.torture.paths import PATHS

__all__ = ["ISOLATION_LEVELS", "Order", "Plan", "Settings"]

ISOLATION_LEVELS = ("READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE")

MAX_SECONDS = 24 * 3600.0
MAX_WORKERS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A run.

    Attributes:
        seconds: How long work is done, in seconds, from 1 to a day.
        seed: Which faults come when, and who works on what.
        lock_service: Who grants leases; see :mod:`fencing.torture.services`.
        workers: How many processes work, from 1 to 32.
        registers: How many registers there are; likewise ``sets`` and ``accounts``.
        sets: How many sets.
        accounts: How many accounts, at least 2.
        ttl: Length of a lease, in seconds, from 0.05 to 60.
        between_faults: Seconds from one fault to the next, on average, from 0.05 to 3600; a lease
            by default (``None``). The longer, the less often workers stop and die by themselves.
        faults: Which kinds of faults come; all that the lock service and the machine can do by
            default (``None``), none if empty.
        paths: Which ways to the database workers take, in turn; see :mod:`fencing.torture.paths`.
        guarded: Whether tables are guarded and guards used, or lock services alone.

    Raises:
        ValueError: One of them is out of its range.
    """

    seconds: float = 60.0
    seed: int = 0
    lock_service: str = "redis"
    workers: int = 5
    registers: int = 2
    sets: int = 1
    accounts: int = 3
    ttl: float = 0.5
    between_faults: float | None = None
    faults: tuple[str, ...] | None = None
    paths: tuple[str, ...] = PATHS
    guarded: bool = True

    def __post_init__(self) -> None:
        for name, least, most in (
            ("seconds", 1.0, MAX_SECONDS), ("workers", 1, MAX_WORKERS), ("registers", 1, 1000),
            ("sets", 1, 1000), ("accounts", 2, 1000), ("ttl", 0.05, 60.0), ("seed", 0, 2**63 - 1),
            ("between_faults", 0.05, 3600.0),
        ):  # fmt: skip
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and least <= value <= most):
                raise ValueError(f"{name} must be from {least:g} to {most:g}, not {value:g}")
        for path in self.paths:
            if path not in PATHS:
                raise ValueError(f"no path {path!r}; there are: {', '.join(PATHS)}")
        if not self.paths:
            raise ValueError(f"no paths at all; there are: {', '.join(PATHS)}")

    @property
    def calm(self) -> float:
        """How much longer than a lease it is from one fault to the next."""
        return 1.0 if self.between_faults is None else self.between_faults / self.ttl


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker does when it comes to a point.

    Attributes:
        point: The point; see :mod:`fencing.torture.points`.
        action: ``"stop"`` (SIGSTOP, by itself), or ``"die"`` (SIGKILL, by itself).
        nth: The how manieth time it comes there, from 1.
    """

    point: str
    action: str
    nth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a worker is told at its start.

    Attributes:
        worker: Its name, such as ``"w2.1"``.
        seed: Of everything it chooses.
        path: Its way to the database; see :mod:`fencing.torture.paths`.
        database_url: SQLAlchemy's address of the database, without a driver.
        locks_url: An address for :func:`fencing.connect`, or ``"adversary:"``.
        record: The file to write to.
        settings: The run's.
        orders: What it does at points, exactly.
        stops: How likely it stops at a point it comes to, from 0 to 1.
        deaths: How likely it dies there, from 0 to 1.
        pooled: Whether the database is reached through a pooler in transaction mode.
        evict_after: As in :class:`fencing.Guard`.
        script: What it does, one unit after the other, instead of choosing; see
            :mod:`fencing.torture.units`.
    """

    worker: str
    seed: int
    path: str
    database_url: str
    locks_url: str
    record: str
    settings: Settings
    orders: tuple[Order, ...] = ()
    stops: float = 0.0
    deaths: float = 0.0
    pooled: bool = False
    evict_after: float | None = None
    script: tuple[dict[str, Any], ...] | None = None

    def to_json(self) -> str:
        """As :meth:`from_json` reads it."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that ``text`` was made of."""
        facts = json.loads(text)
        settings = facts.pop("settings")
        settings["paths"] = tuple(settings["paths"])
        if settings["faults"] is not None:
            settings["faults"] = tuple(settings["faults"])
        orders = tuple(Order(**order) for order in facts.pop("orders"))
        script = facts.pop("script")
        return cls(
            **facts,
            settings=Settings(**settings),
            orders=orders,
            script=None if script is None else tuple(script),
        )

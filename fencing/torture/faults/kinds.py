"""The kinds of faults, by name."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from random import Random  # noqa: TC003 - a dataclass's annotation
from typing import TYPE_CHECKING, TypeAlias

from fencing.torture.faults import (
    administration,
    clocks,
    database,
    network,
    processes,
    standby,
)
from fencing.torture.faults.missing import MissedError
from fencing.torture.history import Harm
from fencing.torture.stage import Stage  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DATABASE", "FaultKind", "MissedError", "Steps", "available", "kinds"]

Steps: TypeAlias = Generator[float | str, None, None]
"""What a fault yields: how long it lasts now, in seconds; or, once, the name of whom it strikes."""

DATABASE = "database"
"""The group of faults that take the database away, or need it themselves."""


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A kind of fault.

    Attributes:
        name: As it is called on the command line and in reports.
        strike: Does it; see the package.
        weight: How often it comes, relative to others.
        breaks_order: Whether a lock service may forget a lock by it, so that the trust of two
            holders may overlap.
        loses_acknowledged: Whether the database may forget by it what it has acknowledged.
        harms: What may go wrong by it; of what is done to a lock service, that may in any case.
        group: Of the faults of a group, other than ``""``, one strikes at a time.
        by_default: Whether it comes where no faults are named.
    """

    name: str
    strike: Callable[[Stage, Random], Steps]
    weight: float = 1.0
    breaks_order: bool = False
    loses_acknowledged: bool = False
    harms: frozenset[Harm] = frozenset()
    group: str = ""
    by_default: bool = True


_WORKER = frozenset({Harm.WORKER})
_AWAY = frozenset({Harm.DATABASE, Harm.SESSIONS})
_ENDED = frozenset({Harm.SESSIONS})

WORKER_STOPPED, WORKER_KILLED = "worker stopped", "worker killed"
"""Workers do so by themselves, too, at points they come to."""

_OF_WORKERS = (
    FaultKind(WORKER_STOPPED, processes.stop_a_worker, 3.0, harms=_WORKER),
    FaultKind(WORKER_KILLED, processes.kill_a_worker, 0.5, harms=_WORKER),
)
_OF_DATABASE = (
    FaultKind("backend killed", database.kill_a_backend, 0.5, harms=_AWAY, group=DATABASE),
    FaultKind("sessions ended", database.end_sessions, 1.0, harms=_ENDED, group=DATABASE),
    FaultKind("database crashed", database.crash, 0.5, harms=_AWAY, group=DATABASE),
    FaultKind("database restarted", database.restart, 0.5, harms=_AWAY, group=DATABASE),
    FaultKind("timeouts set", administration.set_timeouts, 1.0, harms=_AWAY, group=DATABASE),
)
_OF_GUARDS = (
    FaultKind("fences pruned", administration.prune, 2.0, group=DATABASE),
    FaultKind("fence raised", administration.raise_a_fence, 1.0, group=DATABASE),
)
# What it excuses is all that is checked of acknowledged writes; so a run must ask for it.
_PROMOTED = FaultKind(
    "standby promoted", standby.promote, harms=_AWAY, group=DATABASE, breaks_order=True,
    loses_acknowledged=True, by_default=False,
)  # fmt: skip
_SUSPENDED = FaultKind("database stopped", database.suspend, 0.5, harms=_AWAY, group=DATABASE)
# It makes guards anew, so that one that was broken on purpose would be whole again.
_MIGRATED = FaultKind(
    "guards migrated", administration.migrate, harms=frozenset({Harm.DATABASE}), group=DATABASE
)


_PARTED = _AWAY | {Harm.LOCK_SERVICE}
_OF_NETWORK = (
    FaultKind("COMMIT held", network.hold_commit, 1.5, harms=_AWAY),
    FaultKind("COMMIT lost", network.lose_commit, harms=_AWAY),
    FaultKind("COMMIT's answer lost", network.lose_commits_answer, harms=_AWAY),
    FaultKind("admission held", network.hold_admission, 1.5, harms=_AWAY),
    FaultKind("admission's answer lost", network.lose_admissions_answer, harms=_AWAY),
    FaultKind("connections cut", network.cut, harms=_PARTED),
    FaultKind("connections silent", network.silence, harms=_PARTED),
    FaultKind("network parted", network.part, harms=_PARTED),
    FaultKind("network slow", network.delay, harms=_PARTED),
    FaultKind("connections refused", network.refuse, harms=_PARTED),
    FaultKind(
        "lock service's answer lost",
        network.lose_lock_services_answer,
        harms=frozenset({Harm.LOCK_SERVICE}),
    ),
)
# Trust is measured by a clock that does not jump, and so is everything else: nothing goes wrong.
_CLOCK_JUMPED = FaultKind("worker's clock jumped", clocks.jump, 1.5)


def kinds(stage: Stage) -> Mapping[str, FaultKind]:
    """All kinds that a stage can be struck by, by name."""
    of_locks = (
        replace(kind, harms=kind.harms | {Harm.LOCK_SERVICE}) for kind in stage.locks.faults()
    )
    found = [*_OF_WORKERS, *_OF_DATABASE, *of_locks]
    if stage.ways.databases:
        found += _OF_NETWORK
    if stage.ways.clocks:
        found.append(_CLOCK_JUMPED)
    if not stage.is_shared:
        found.append(_PROMOTED)
    if database.can_suspend():
        found.append(_SUSPENDED)
    if stage.settings.guarded:
        found += _OF_GUARDS
        if not stage.altered:
            found.append(_MIGRATED)
    return {kind.name: kind for kind in found}


def available(stage: Stage, names: tuple[str, ...] | None) -> list[FaultKind]:
    """Those of the kinds that are wanted; ``None``: all that come by default.

    Raises:
        ValueError: There is no such kind.
    """
    known = kinds(stage)
    for name in names or ():
        if name not in known:
            raise ValueError(
                f"no fault {name!r} with {stage.locks.name}; there are: {', '.join(sorted(known))}"
            )
    return [
        kind
        for name, kind in known.items()
        if (kind.by_default if names is None else name in names)
    ]

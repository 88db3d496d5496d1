"""The kinds of faults, by name."""

from __future__ import annotations

from collections.abc import Callable, Generator  # noqa: TC003 - a dataclass's annotations
from dataclasses import dataclass, replace
from random import Random  # noqa: TC003 - as above
from typing import TYPE_CHECKING

from fencing.torture.faults import processes
from fencing.torture.history import Harm
from fencing.torture.stage import Stage  # noqa: TC001 - as above

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FaultKind", "MissedError", "available", "kinds"]


class MissedError(Exception):
    """What was to be struck is not there now: another fault has taken it away."""


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
    """

    name: str
    strike: Callable[[Stage, Random], Generator[float, None, None]]
    weight: float = 1.0
    breaks_order: bool = False
    loses_acknowledged: bool = False
    harms: frozenset[Harm] = frozenset()


_WORKER = frozenset({Harm.WORKER})
_DATABASE = frozenset({Harm.DATABASE, Harm.SESSIONS})

_OF_PROCESSES = (
    FaultKind("worker stopped", processes.stop_a_worker, weight=3.0, harms=_WORKER),
    FaultKind("worker killed", processes.kill_a_worker, harms=_WORKER),
    FaultKind("backend killed", processes.kill_a_backend, harms=_DATABASE),
)


def kinds(stage: Stage) -> Mapping[str, FaultKind]:
    """All kinds that a stage can be struck by, by name."""
    of_locks = (
        replace(kind, harms=kind.harms | {Harm.LOCK_SERVICE}) for kind in stage.locks.faults()
    )
    return {kind.name: kind for kind in (*_OF_PROCESSES, *of_locks)}


def available(stage: Stage, names: tuple[str, ...] | None) -> list[FaultKind]:
    """Those of the kinds that are wanted; ``None``: all.

    Raises:
        ValueError: There is no such kind.
    """
    known = kinds(stage)
    for name in names or ():
        if name not in known:
            raise ValueError(
                f"no fault {name!r} with {stage.locks.name}; there are: {', '.join(sorted(known))}"
            )
    return [kind for name, kind in known.items() if names is None or name in names]

"""What a run needs of a lock service's servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

from fencing.clock import now
from fencing.torture.faults.kinds import FaultKind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from random import Random

    from fencing.torture.stage import Stage

__all__ = ["LockServers", "again", "lock_fault"]

_PATIENCE = 30.0
"""How long servers may take until they can be asked again, in seconds."""
_PAUSE = 0.05
"""Until they are asked again, in seconds."""


class LockServers(ABC):
    """The servers of a lock service; a context manager that ends them."""

    name: ClassVar[str]
    """As it is called on the command line."""
    keeps_order: ClassVar[bool] = True
    """Whether, without faults, two leases on one resource are never believed in at a time."""

    @abstractmethod
    def start(self, stage: Stage) -> None:
        """Start them, and wait until they serve; the database of the stage runs already."""

    @abstractmethod
    def url(self, worker: str) -> str:
        """Where a worker finds it: an address for :func:`fencing.connect`."""

    @abstractmethod
    def close(self) -> None:
        """End them, and remove their files."""

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to it."""
        return ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def lock_fault(
    name: str,
    strike: Callable[[Stage, Random], Generator[float, None, None]],
    *,
    weight: float = 1.0,
    breaks_order: bool = False,
) -> FaultKind:
    """Something that is done to a lock service.

    Args:
        name: As it is called on the command line and in reports.
        strike: Does it; see :mod:`fencing.torture.faults`.
        weight: How often it comes, relative to others.
        breaks_order: Whether locks may be forgotten by it, or end before their time.
    """
    return FaultKind(name, strike, weight=weight, breaks_order=breaks_order)


def again(ask: Callable[[], object], *errors: type[Exception]) -> Generator[float, None, None]:
    """Ask servers for something until they do it.

    Args:
        ask: What is asked.
        errors: What it raises if they cannot do it yet.

    Raises:
        Exception: One of those, after half a minute.
    """
    deadline = now() + _PATIENCE
    while True:
        try:
            ask()
        except errors:
            if now() > deadline:
                raise
        else:
            return
        yield _PAUSE

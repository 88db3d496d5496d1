"""What a run needs of a lock service's servers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from fencing.torture.faults.kinds import FaultKind
    from fencing.torture.stage import Stage

__all__ = ["LockServers"]


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

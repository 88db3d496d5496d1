"""What a run needs of a lock service's servers, and what can be done to any server.

A server that is away because of another fault has been missed: see
:class:`~fencing.torture.faults.MissedError`.
"""

from __future__ import annotations

import shutil
import sys
from abc import ABC, abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, ClassVar, Self

from fencing.clock import now
from fencing.torture.faults.kinds import FaultKind, MissedError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from random import Random

    from fencing.embedded.server import LocalServer
    from fencing.torture.stage import Stage

__all__ = [
    "LockServers",
    "away",
    "can_jump",
    "kill",
    "lock_fault",
    "missed_if",
    "some_leases",
    "stop",
    "wait_until",
]

_PATIENCE = 30.0
"""How long servers may take for what they do by themselves, in seconds."""
_PAUSE = 0.05
"""Between two looks at them, in seconds."""


class LockServers(ABC):
    """The servers of a lock service; a context manager that ends them."""

    name: ClassVar[str]
    """As it is called on the command line."""
    keeps_order: ClassVar[bool] = True
    """Whether, without faults, two leases on one resource are never believed in at a time."""

    lingers: ClassVar[float] = 0.0
    """How much longer than a lease it may wait for somebody who is gone, in seconds."""

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
    group: str = "",
) -> FaultKind:
    """Something that is done to a lock service.

    Args:
        name: As it is called on the command line and in reports.
        strike: Does it; see :mod:`fencing.torture.faults`.
        weight: How often it comes, relative to others.
        breaks_order: Whether locks may be forgotten by it, or end before their time.
        group: Of the faults of a group one strikes at a time.
    """
    return FaultKind(name, strike, weight=weight, breaks_order=breaks_order, group=group)


@contextmanager
def missed_if(*errors: type[Exception]) -> Iterator[None]:
    """A fault whose server is away just now, and says so by one of these errors, has missed it."""
    try:
        yield
    except errors as error:
        raise MissedError from error


def kill(server: LocalServer, seconds: float) -> Generator[float, None, None]:
    """Kill a server, and start it again with what it has kept.

    Args:
        server: Which.
        seconds: After what time.
    """
    if server.pid is None:
        raise MissedError
    server.kill()
    yield from away(server, seconds)


def away(server: LocalServer, seconds: float) -> Generator[float, None, None]:
    """Leave a server that has ended as it is, and then start it again.

    Args:
        server: Which.
        seconds: For how long.
    """
    try:
        yield seconds
        server.launch()
        while not server.serves():
            yield _PAUSE
    finally:
        if server.pid is None:
            server.launch()
        server.await_ready()


def stop(server: LocalServer, seconds: float) -> Generator[float, None, None]:
    """Let a server stand still (SIGSTOP).

    Args:
        server: Which.
        seconds: For how long.
    """
    if server.pid is None:
        raise MissedError
    server.suspend()
    try:
        yield seconds
    finally:
        server.resume()


def wait_until(
    happened: Callable[[], bool], *errors: type[Exception]
) -> Generator[float, None, None]:
    """Wait for servers to do something by themselves; not for longer than half a minute.

    Args:
        happened: Looks whether they have.
        errors: What it raises if they cannot be asked just now.
    """
    deadline = now() + _PATIENCE
    while now() < deadline:
        with suppress(*errors):
            if happened():
                return
        yield _PAUSE


def can_jump() -> bool:
    """Whether servers here can run by a false clock: on Linux, where there is a C compiler."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def some_leases(stage: Stage, chance: Random, most: float = 3.0) -> float:
    """How long something lasts, in seconds: at the most so many leases."""
    return stage.settings.ttl * chance.uniform(0.1, most)

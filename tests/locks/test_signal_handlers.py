"""A signal handler that acquires the lock for which its own thread waits stands in no line.

It would be behind its own thread, which stands still until the handler is done; or behind another
that cannot leave, because the handler's thread was about to do something with the line.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.errors import LockServiceError
from fencing.locks import lines
from fencing.locks.etcd import asking as etcd_asking
from fencing.locks.etcd import performing as etcd
from fencing.locks.etcd.address import Address
from fencing.locks.postgres import asking as postgres_asking
from fencing.locks.postgres import performing as postgres
from fencing.locks.postgres import waiters as postgres_waiters
from fencing.locks.redis import asking as redis_asking
from fencing.locks.redis import performing
from fencing.locks.redis import waiters as redis_waiters
from fencing.locks.redlock import performing as redlock
from fencing.locks.redlock import waiters as redlock_waiters
from fencing.locks.redlock.asking import Quorum
from fencing.locks.zookeeper import asking as zookeeper_asking
from fencing.locks.zookeeper import performing as zookeeper
from tests.support.interrupting import ends, handled_before_step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import ModuleType


class Prompted:
    """A call of which nothing is settled by a first step."""

    def __init__(self, steps: Generator[Any, Any, None]) -> None:
        self._steps = steps

    def begin(self) -> None:
        raise LookupError("there is no first step")

    def go_on(self, came: object) -> Generator[Any, Any, None]:
        assert came is None or isinstance(came, LookupError)
        return self._steps


class Lock:
    """A lock of one kind of service, of which only the line within the process matters."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.modules: tuple[ModuleType, ...] = (lines,)
        match kind:
            case "redis":
                self._performer: Any = performing.Performer(redis.Redis(), "n")
                self._line: Any = redis_asking.Line
                self.modules += (redis_waiters,)
            case "redlock":
                self._performer = redlock.Performer([], "n", Quorum(0, 1.0))
                self._line = redis_asking.Line
                self.modules += (redlock_waiters,)
            case "postgres":
                self._performer = postgres.Performer("", 1, "")
                self._line = postgres_asking.Line
                self.modules += (postgres_waiters,)
            case "etcd":
                self._performer = etcd.Performer(Address(("http://127.0.0.1:1",)))
                self._line = etcd_asking.Line
                self.modules += (etcd,)
            case "zookeeper":
                session: Any = SimpleNamespace(unwatch=lambda _: None)
                self._performer = zookeeper.Performer(session)
                self._line = zookeeper_asking.Line
                self.modules += (zookeeper,)

    def acquire(self, meanwhile: Callable[[], object]) -> None:
        """Stand in line, do something, and wait for one's turn."""

        def call(said: Any) -> Generator[Any, Any, None]:
            meanwhile()
            if said is None if self._kind == "redis" else said:
                yield self._line(3600)

        match self._kind:
            case "redis":
                self._performer.perform_waiting(
                    lambda said: Prompted(call(said)), "r", "f" * 32, in_line=True
                )
            case "postgres":
                self._performer.perform_waiting(call, "r", "f" * 32, in_line=True)
            case "etcd":
                self._performer.perform_waiting(call, "r", fair=False)
            case "zookeeper":
                self._performer.perform_in_line(call, "r")
            case _:
                self._performer.perform_waiting(call, "r")


def fail() -> None:
    raise LockServiceError("nobody answers", resource="r")


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("kind", ["redis", "redlock", "postgres", "etcd", "zookeeper"])
def test_before_any_step_in_line(kind: str, *, fails: bool) -> None:
    def acquire_at_every_step() -> None:
        number, was_handled = 0, True
        while was_handled:
            number += 1
            was_handled = passes(Lock(kind), number, fails=fails)
        assert number > 100

    assert ends(acquire_at_every_step)


def passes(lock: Lock, number: int, *, fails: bool) -> bool:
    """Two threads in line, one of which is interrupted; return whether there are so many steps."""
    is_first, may_leave = threading.Event(), threading.Event()

    def hold() -> None:
        is_first.set()
        may_leave.wait()

    def handler() -> None:
        if fails:
            with pytest.raises(LockServiceError):
                lock.acquire(fail)
        lock.acquire(may_leave.set)

    other = threading.Thread(target=lock.acquire, args=(hold,), daemon=True)
    other.start()
    assert is_first.wait(20)
    with handled_before_step(number, handler, *lock.modules) as steps:
        lock.acquire(may_leave.set)
    other.join()
    assert not leftovers(lock), steps[-3:]
    return len(steps) >= number


def leftovers(lock: Lock) -> list[object]:
    """What is left in the lines of a service."""
    parts = vars(lock._performer)
    place = parts.get("_waiters") or parts.get("_room") or parts.get("room") or lock._performer
    in_line = getattr(place, "lines", None) or place._lines
    threads = getattr(place, "threads", None) or place._threads
    return [*in_line._lines, *threads._here]

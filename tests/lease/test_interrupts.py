"""A signal that comes just when a block begins or ends: its end is done all the same.

Signals are noticed where the interpreter looks for them. ``_thread.interrupt_main`` marks one as
come; called by what is written in C, it is noticed by the next function that looks: the one tested.
"""

from __future__ import annotations

import _thread
import operator
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from fencing import Guard
from fencing.clock import now
from fencing.core.performing import perform
from fencing.core.plan import Lock
from fencing.interrupts import begins_in_its_try, is_begun_unseen
from fencing.lease import Lease
from fencing.lease.group import LeaseGroup
from fencing.request import AcquireRequest

if TYPE_CHECKING:
    from collections.abc import Generator


class Released:
    """A lock service that notes what it is given back."""

    def __init__(self) -> None:
        self.released: list[str] = []

    def release(self, lease: Lease) -> None:
        self.released.append(lease.resource)
        lease.note_released()


class StruckLease(Lease):
    """A signal comes when ``struck`` is read."""

    strike = staticmethod(_thread.interrupt_main)
    struck = property(operator.methodcaller("strike"))


class StruckAtItsBegin(StruckLease):
    """The end of a block is looked up before its begin is called."""

    __exit__ = StruckLease.struck


class StruckGroup(LeaseGroup):
    strike = staticmethod(_thread.interrupt_main)
    struck = property(operator.methodcaller("strike"))


class GroupStruckAtItsBegin(StruckGroup):
    __exit__ = StruckGroup.struck


def lease_of(service: Any, kind: type[Lease] = StruckLease, resource: str = "r") -> Any:
    return kind(
        service, resource=resource, token=1, holder=f"h {resource}", owner="o", ttl=30.0,
        asked_at=now(),
    )  # fmt: skip


def test_an_interrupt_when_a_block_begins_gives_the_lease_back():
    service = Released()
    with pytest.raises(KeyboardInterrupt), lease_of(service, StruckAtItsBegin):
        pytest.fail("the block has begun")
    assert service.released == ["r"]


def test_an_interrupt_when_a_block_ends_gives_the_lease_back():
    service = Released()
    with pytest.raises(KeyboardInterrupt), lease_of(service) as lease:
        lease.struck  # noqa: B018 - it is struck by being read
    assert service.released == ["r"]


def test_an_interrupt_when_a_failed_block_ends_gives_the_lease_back():
    service = Released()
    with pytest.raises(KeyboardInterrupt), lease_of(service) as lease:
        lease.struck.no_such_thing  # noqa: B018 - likewise; None has no such thing
    assert service.released == ["r"]


def test_an_interrupt_of_a_release_gives_the_lease_back():
    service = Released()
    lease = lease_of(service)
    with pytest.raises(KeyboardInterrupt):
        lease.release(*(lease.struck or ()))
    assert service.released == ["r"]


def test_an_interrupt_when_an_inner_release_begins_leaves_the_outer_block_held():
    service = Released()
    lease = lease_of(service)
    lease.blocks.acquired_again()
    with lease:
        with lease:
            lease.release()
            with pytest.raises(KeyboardInterrupt):
                lease.release(*(lease.struck or ()))
        assert service.released == []
    assert service.released == ["r"]


def test_an_interrupt_when_the_block_of_several_begins_gives_all_back():
    service = Released()
    leases = [lease_of(service, Lease, name) for name in ("a", "b")]
    with pytest.raises(KeyboardInterrupt), GroupStruckAtItsBegin(leases):
        pytest.fail("the block has begun")
    assert sorted(service.released) == ["a", "b"]


def test_an_interrupt_when_the_block_of_several_ends_gives_all_back():
    service = Released()
    leases = [lease_of(service, Lease, name) for name in ("a", "b")]
    with pytest.raises(KeyboardInterrupt), StruckGroup(leases) as group:
        group.struck  # noqa: B018 - it is struck by being read
    assert sorted(service.released) == ["a", "b"]


def test_an_interrupt_of_a_release_of_several_gives_all_back():
    service = Released()
    group = StruckGroup([lease_of(service, Lease, name) for name in ("a", "b")])
    with pytest.raises(KeyboardInterrupt):
        group.release(*(group.struck or ()))
    assert sorted(service.released) == ["a", "b"]


class ReturnsStruck:
    """A lock service whose lease is returned just when a signal comes."""

    def __init__(self) -> None:
        self.service = Released()
        self.lease = lease_of(self.service)

    def acquire(self, *_: object, **__: object) -> Lease:
        lease: Lease = self.lease
        lease.struck  # noqa: B018 - it is struck by being read
        return lease

    try_acquire = acquire


@pytest.mark.parametrize(
    "wishes",
    [
        {}, {"fair": True}, {"keepalive": True}, {"blocking": False},
        {"blocking": False, "keepalive": True},
    ],
)  # fmt: skip
def test_an_interrupt_when_a_guard_is_given_a_lease_gives_it_back(wishes: dict[str, Any]):
    def plan() -> Generator[Lock, Any, None]:
        yield Lock(AcquireRequest(resource="r", **wishes))

    locks: Any = ReturnsStruck()
    with pytest.raises(KeyboardInterrupt):
        perform(plan(), locks, lambda lease: lease)
    assert locks.service.released == ["r"]


def test_an_interrupt_when_a_decorated_function_is_given_a_lease_gives_it_back():
    locks: Any = ReturnsStruck()

    class Holding(Guard):
        def __init__(self) -> None:
            pass

        acquire = locks.acquire

    @Holding().holding("{name}")
    def work(name: str) -> None:
        pytest.fail("the block has begun")

    with pytest.raises(KeyboardInterrupt):
        work("r")
    assert locks.service.released == ["r"]


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="not known to work there")
def test_a_function_that_begins_in_its_try_is_otherwise_as_it_was():
    def doubled(number: int, *, by: int = 2) -> int:
        """Multiply."""
        try:
            return number * by
        finally:
            pass

    before = doubled.__code__
    assert begins_in_its_try(doubled) is doubled
    assert (doubled(4), doubled(4, by=3), doubled.__doc__) == (8, 12, "Multiply.")
    assert is_begun_unseen(doubled.__code__)
    assert not is_begun_unseen(before)
    assert list(doubled.__code__.co_lines()) == list(before.co_lines())


def test_what_is_no_python_function_is_left_as_it_is():
    assert begins_in_its_try(len) is len


@pytest.fixture(autouse=True)
def keyboard_interrupts() -> Generator[None, None, None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)

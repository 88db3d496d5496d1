"""What a request makes of its arguments; what it refuses is in the contract of lock services."""

from __future__ import annotations

from enum import IntEnum

from fencing.request import AcquireRequest


class Level(IntEnum):
    """A number by another name."""

    HIGH = 7


def test_a_member_of_an_int_enum_is_the_number_it_is():
    assert type(AcquireRequest(resource="x", floor=Level.HIGH).floor) is int


def test_patience_is_zero_without_waiting_and_endless_without_a_limit():
    assert AcquireRequest(resource="x", blocking=False).patience == 0
    assert AcquireRequest(resource="x").patience == float("inf")
    assert AcquireRequest(resource="x", blocking_timeout=2).patience == 2

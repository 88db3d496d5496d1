"""For how long leases are believed in."""

from __future__ import annotations

from dataclasses import replace

from tests.support.broken import catches, find
from tests.support.histories import REGISTER, two_leases


@catches("trust never overlaps", "token 2 was believed in")
def test_two_believe_at_a_time():
    world = two_leases()
    world.keep("w1.1:0", world.now)
    return world.history()


@catches("trust never overlaps", "token 3 was believed in")
def test_one_believes_from_long_before():
    world = two_leases()
    world.add(world.acquire("register:0"), REGISTER)
    lease = world.acquisitions["w2.1:1"].leases["register:0"]
    world.acquisitions["w2.1:1"] = replace(
        world.acquisitions["w2.1:1"],
        leases={"register:0": replace(lease, until=lease.since + 0.001)},
    )
    world.keep("w1.1:0", world.now)
    return world.history()


def test_a_lock_service_that_does_not_keep_order_may_let_two_believe():
    assert (
        find(
            "trust never overlaps",
            replace(test_two_believe_at_a_time.__wrapped__(), keeps_order=False),
        )
        == []
    )


def test_who_believes_in_nothing_does_not_overlap():
    world = two_leases()
    leases = world.acquisitions["w1.1:0"].leases
    late = replace(leases["register:0"], since=world.now, until=world.now - 1)
    world.acquisitions["w1.1:0"] = replace(
        world.acquisitions["w1.1:0"], leases={"register:0": late}
    )
    assert find("trust never overlaps", world.history()) == []


def test_one_lease_ends_when_the_next_begins():
    world = two_leases()
    world.keep("w1.1:0", world.acquisitions["w2.1:1"].leases["register:0"].since)
    assert find("trust never overlaps", world.history()) == []


def test_who_holds_a_lease_twice_does_not_overlap():
    world = two_leases()
    again = replace(world.acquisitions["w2.1:1"], name="w2.1:2")
    world.acquisitions["w2.1:2"] = again
    assert find("trust never overlaps", world.history()) == []

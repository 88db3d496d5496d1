"""How long a successor may wait, to the moment: what counts as in its way, and what does not."""

from __future__ import annotations

import pytest

from fencing.torture.checking import longest_wait
from fencing.torture.history import Acquisition, Believed, Fault, Harm, Outcome
from tests.support.broken import find
from tests.support.histories import REGISTER, TTL, World

SUCCESSORS = "successors proceed"

ASKED = 1000.0
"""When the successor asks, in seconds; all times here are sums of powers of two, so exact."""
BOUND = 2 * TTL + 2.0
MOMENT = 0.125


def waits(world: World, seconds: float, name: str = "w9.1:1", **fields) -> None:
    """Somebody asks in vain for so many seconds."""
    answered_at = ASKED + seconds
    fields = {"error": "LockNotAcquiredError", "ttl": TTL, "answered_at": answered_at, **fields}
    world.acquisitions[name] = Acquisition(
        name, name.partition(":")[0], ("register:0",), ASKED, leases={}, **fields
    )


def has(world: World, since: float, until: float, name: str = "w1.1:1", **fields) -> None:
    """Somebody believes in a lease, from and until so many seconds after the successor asks."""
    lease = Believed("register:0", 1, f"holder of {name}", ASKED + since, ASKED + until)
    fields = {"asked_at": lease.since, "answered_at": lease.since, "ttl": TTL, **fields}
    world.acquisitions[name] = Acquisition(
        name, name.partition(":")[0], ("register:0",), leases={"register:0": lease}, **fields
    )


def fails(world: World, since: float, until: float, *harms: Harm, target: str = "server") -> None:
    """Something is wrong, from and until so many seconds after the successor asks."""
    world.faults.append(Fault("fault", target, ASKED + since, ASKED + until, frozenset(harms)))


def starved(world: World) -> bool:
    return find(SUCCESSORS, world.history()) != []


# ------------------------------------------------------------------------- who waits for a lease


def test_nobody_waits_where_nobody_asks():
    assert not starved(World())


def test_the_bound_is_twice_the_longest_lease_and_two_seconds():
    world = World()
    waits(world, BOUND)
    assert not starved(world)
    waits(world, BOUND + MOMENT)
    assert starved(world)
    has(world, -90.0, -80.0, ttl=TTL + MOMENT)
    assert not starved(world)


def test_who_starved_is_shown():
    world = World()
    waits(world, 8.0)
    (violation,) = find(SUCCESSORS, world.history())
    assert violation.subject == "w9.1:1"
    assert "not granted" in violation.message
    assert violation.evidence == (repr(world.acquisitions["w9.1:1"]),)


def test_who_is_granted_a_lease_late_has_waited_as_well():
    world = World()
    has(world, BOUND, 9.0, asked_at=ASKED)
    assert not starved(world)
    has(world, BOUND + MOMENT, 9.0, asked_at=ASKED)
    (violation,) = find(SUCCESSORS, world.history())
    assert "late granted" in violation.message


def test_who_is_granted_a_lease_waits_for_it_until_his_admission_begins():
    world = World()
    began = {"asked_at": ASKED, "admission_began_at": ASKED + BOUND}
    works(world, 0.0, 8.0)
    has(world, 8.0, 9.0, "w9.1:1", **began)
    assert not starved(world)
    has(world, 8.0, 9.0, "w9.1:1", **{**began, "admission_began_at": ASKED + BOUND + MOMENT})
    assert starved(world)


def test_his_own_lease_is_not_in_his_way():
    world = World()
    has(world, 0.0, 9.0, asked_at=ASKED, answered_at=ASKED + 8.0)
    assert starved(world)


def test_who_was_killed_was_refused_nothing():
    world = World()
    waits(world, 8.0, answered_at=None)
    assert not starved(world)


def test_a_lease_is_in_the_way_while_it_is_trusted_and_the_bound_is_for_what_comes_then():
    world = World()
    has(world, -1.0, 1.0)
    waits(world, 1.0 + BOUND)
    assert not starved(world)
    waits(world, 1.0 + BOUND + MOMENT)
    assert starved(world)


def test_who_has_the_lock_later_does_not_excuse_that_it_was_free_before():
    world = World()
    waits(world, 8.0)
    has(world, BOUND, 8.0)
    assert not starved(world)
    has(world, BOUND + MOMENT, 8.0)
    assert starved(world)


def test_faults_and_leases_together_may_be_in_the_way_all_the_time():
    world = World()
    waits(world, 8.0)
    has(world, 4.0, 8.0)
    assert starved(world)
    fails(world, 0.0, 4.0, Harm.LOCK_SERVICE)
    assert not starved(world)


@pytest.mark.parametrize("harm", [Harm.LOCK_SERVICE, Harm.DATABASE])
def test_servers_need_a_lease_s_length_after_a_fault(harm):
    world = World()
    waits(world, BOUND + MOMENT)
    fails(world, -TTL - MOMENT, -TTL, harm)
    assert starved(world)
    fails(world, -TTL, MOMENT - TTL, harm)
    assert not starved(world)
    waits(world, 1.0 + TTL + BOUND)
    fails(world, 0.0, 1.0, harm)
    assert not starved(world)
    waits(world, 1.0 + TTL + BOUND + MOMENT)
    assert starved(world)


def test_sessions_that_end_are_in_nobodys_way():
    world = World()
    waits(world, 8.0)
    fails(world, 0.0, 8.0, Harm.SESSIONS)
    assert starved(world)


# ------------------------------------------------------------------------- who is being admitted


def admits(world: World, seconds: float, **fields) -> None:
    """An admission takes so many seconds."""
    fields = {
        "admission_began_at": ASKED,
        "asked_at": ASKED,
        "answered_at": ASKED + seconds,
    } | fields
    has(world, seconds, seconds + 1.0, "w9.1:1", **fields)


def works(world: World, since: float, until: float | None, name: str = "w1.1:1") -> None:
    """A transaction is open, from and until so many seconds after the admission begins."""
    if name not in world.acquisitions:
        has(world, -9.0, -8.0, name)
    world.add(
        name,
        REGISTER,
        began_at=ASKED + since,
        ended_at=None if until is None else ASKED + until,
        outcome=Outcome.COMMITTED if until is not None else Outcome.CUT_OFF,
    )


def test_an_admission_that_nothing_is_in_the_way_of_takes_a_second_at_most():
    world = World()
    admits(world, 1.0)
    assert not starved(world)
    admits(world, 1.0 + MOMENT)
    (violation,) = find(SUCCESSORS, world.history())
    assert violation.subject == "w9.1:1"
    assert violation.evidence == (repr(world.acquisitions["w9.1:1"]),)


def test_an_admission_that_was_not_seen_or_did_not_end_has_no_length():
    world = World()
    admits(world, BOUND, admission_began_at=None)
    assert not starved(world)
    admits(world, 8.0, answered_at=None)
    assert not starved(world)


def test_an_admission_waits_for_the_last_transaction_that_was_open():
    world = World()
    works(world, -1.0, 4.0)
    works(world, 0.0, 5.0)
    works(world, -1.0, 3.0)
    admits(world, 6.0)
    assert not starved(world)
    admits(world, 6.0 + MOMENT)
    assert starved(world)


def test_an_admission_waits_for_none_that_had_ended():
    world = World()
    works(world, -2.0, -1.0)
    admits(world, 1.0)
    assert not starved(world)


def test_an_admission_is_not_in_its_own_way():
    world = World()
    admits(world, 8.0)
    works(world, -1.0, 8.0, "w9.1:1")
    assert starved(world)


def test_a_transaction_that_was_cut_off_may_stay_open_for_the_bound():
    world = World()
    works(world, 0.0, None)
    admits(world, BOUND + 1.0)
    assert not starved(world)
    admits(world, BOUND + 1.0 + MOMENT)
    assert starved(world)


def test_an_admission_may_be_slow_for_a_second_after_the_database_was():
    world = World()
    admits(world, 8.0)
    fails(world, -2.0, -1.0 - MOMENT, Harm.DATABASE)
    assert starved(world)
    fails(world, -2.0, -1.0, Harm.DATABASE)
    assert not starved(world)


# ------------------------------------------------------------------------- what is reported


def test_only_who_was_granted_a_lease_and_told_so_has_waited_for_it():
    world = World()
    waits(world, 8.0)
    has(world, 8.0, 9.0, "w2.1:1", answered_at=None)
    assert longest_wait(world.history()) is None
    has(world, 4.0, 5.0, "w3.1:1", asked_at=ASKED)
    assert longest_wait(world.history()) == (4.0, "w3.1:1")

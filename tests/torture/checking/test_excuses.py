"""What may have been in the way, to the moment: faults, and others who had the lock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencing.torture.checking.excuses import Faults, Rivals
from fencing.torture.history import Acquisition, Believed, Fault, Harm
from tests.support.histories import TTL, World

MOMENT = 0.125

SINCE, UNTIL = 100.0, 101.0
"""The time that is asked about, in seconds; all times here are sums of powers of two, so exact."""


# ------------------------------------------------------------------------- faults


def faults(
    since: float, until: float, harm: Harm = Harm.DATABASE, target: str = "server"
) -> Faults:
    world = World()
    world.faults.append(Fault("fault", target, since, until, frozenset({harm})))
    return Faults(world.history())


@pytest.mark.parametrize(
    ("since", "until", "excuses"),
    [
        (90.0, SINCE - 2.0 - MOMENT, False),
        (90.0, SINCE - 2.0, True),
        (UNTIL, 110.0, True),
        (UNTIL + MOMENT, 110.0, False),
    ],
)
def test_a_fault_of_servers_excuses_from_its_begin_until_so_long_after_its_end(
    since, until, excuses
):
    found = faults(since, until).during(SINCE, UNTIL, Harm.DATABASE, after=2.0)
    assert any(found) is excuses


@pytest.mark.parametrize(
    ("since", "until", "excuses"),
    [
        (90.0, SINCE - MOMENT, False),
        (90.0, SINCE, True),
        (UNTIL, 110.0, True),
        (UNTIL + MOMENT, 110.0, False),
    ],
)
def test_a_fault_of_a_worker_excuses_while_it_lasts(since, until, excuses):
    found = faults(since, until, Harm.WORKER, "w1.1").of_worker("w1.1", SINCE, UNTIL)
    assert any(found) is excuses


def test_a_fault_of_one_workers_connections_excuses_others_unless_they_are_asked_about():
    cut_off = faults(SINCE, UNTIL, Harm.LOCK_SERVICE, "w1")
    assert any(cut_off.during(SINCE, UNTIL, Harm.LOCK_SERVICE, after=0.0))
    assert any(cut_off.during(SINCE, UNTIL, Harm.LOCK_SERVICE, after=0.0, worker="w1.2"))
    assert not any(cut_off.during(SINCE, UNTIL, Harm.LOCK_SERVICE, after=0.0, worker="w11.2"))


# ------------------------------------------------------------------------- rivals

WAITER = Acquisition("w9.1:1", "w9.1", ("r",), SINCE, UNTIL, {}, "LockNotAcquiredError", ttl=TTL)


def lease(since: float, until: float, name: str = "w1.1:1", **fields) -> Acquisition:
    """An acquisition that was granted, and believed in from and until then."""
    believed = Believed("r", 1, f"holder of {name}", since, until)
    granted = Acquisition(name, "w1.1", ("r",), since, since, {"r": believed}, ttl=TTL)
    return replace(granted, **fields)


def in_the_way(*others: Acquisition, lingering: bool = False, longer: float = 0.0) -> set[str]:
    rivals = Rivals([WAITER, *others], lingering=lingering, longer=longer)
    return {name for _since, _until, name in rivals.during(WAITER, SINCE, UNTIL)}


@pytest.mark.parametrize(
    ("since", "until", "is_one"),
    [
        (90.0, SINCE - MOMENT, False),
        (90.0, SINCE, True),
        (UNTIL, 110.0, True),
        (UNTIL + MOMENT, 110.0, False),
    ],
)
def test_a_lease_is_in_the_way_while_it_is_believed_in(since, until, is_one):
    long_before = lease(40.0, 80.0, "w2.1:1")
    assert in_the_way(lease(since, until), long_before) == ({"w1.1:1"} if is_one else set())


def test_a_lease_lingers_for_its_length_and_longer_where_that_is_said():
    ended = lease(90.0, SINCE - TTL - 1.0)
    assert in_the_way(ended, lingering=True, longer=1.0)
    assert not in_the_way(ended, lingering=True, longer=1.0 - MOMENT)
    assert not in_the_way(ended, lingering=True)
    assert in_the_way(lease(90.0, SINCE - TTL), lingering=True)
    assert not in_the_way(lease(90.0, SINCE - TTL), lingering=False, longer=1.0)


def test_those_in_the_way_are_found_in_whatever_order_they_asked():
    others = [lease(70.0, 71.0, "before"), lease(99.5, 100.5, "then"), lease(120.0, 121.0, "after")]
    assert in_the_way(*others) == in_the_way(*others[::-1]) == {"then"}


def test_a_lease_is_in_the_way_since_its_admission_began():
    then = {"asked_at": SINCE, "admission_began_at": UNTIL}
    assert in_the_way(lease(UNTIL + 1.0, 110.0, **then))
    assert not in_the_way(
        lease(UNTIL + 1.0, 110.0, **then | {"admission_began_at": UNTIL + MOMENT})
    )
    assert in_the_way(lease(UNTIL, 110.0, **then | {"admission_began_at": UNTIL + MOMENT}))


def test_a_lease_may_be_in_the_way_since_it_was_asked_for_if_its_admission_was_not_seen():
    assert in_the_way(lease(UNTIL + 2.0, 110.0, asked_at=UNTIL))
    assert not in_the_way(lease(UNTIL + 2.0, 110.0, asked_at=UNTIL + MOMENT))


def test_who_was_admitted_in_vain_had_the_lock_from_asking_until_a_lease_after_the_answer():
    failed = replace(WAITER, name="w1.1:1", asked_at=90.0, error="OperationalError")
    assert in_the_way(replace(failed, answered_at=SINCE - TTL))
    assert not in_the_way(replace(failed, answered_at=SINCE - TTL - MOMENT, patience=60.0))
    assert not in_the_way(replace(failed, asked_at=UNTIL + MOMENT, answered_at=110.0))


def test_who_was_killed_may_have_had_the_lock_until_a_lease_after_it_would_have_given_up():
    killed = replace(WAITER, name="w1.1:1", asked_at=90.0, answered_at=None)
    assert in_the_way(replace(killed, patience=SINCE - TTL - 90.0))
    assert not in_the_way(replace(killed, patience=SINCE - TTL - 90.0 - MOMENT))

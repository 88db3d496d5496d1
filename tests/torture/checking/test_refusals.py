"""What each refusal needs as its reason, to the moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencing.torture.history import Acquisition, Believed, Fault, Harm, Outcome
from tests.support.broken import find
from tests.support.histories import REGISTER, TTL, World

WITNESS = "refusals have a witness"

BEGAN, ENDED = 100.0, 100.25
"""The transaction that is refused; in seconds, all of them sums of powers of two, so exact."""
MOMENT = 0.0009765625
ROUNDED = 0.005

A, B = "register:0", "register:1"


def holder_of(resource: str) -> str:
    return f"holder of {resource}"


class Refusal:
    """A worker is refused something while all its leases are trusted, by nobody's fault.

    It has token 5 on two resources.
    """

    def __init__(self, error: str = "LeaseExpiredError", **fields) -> None:
        self.world = World()
        self.acquisition = Acquisition(
            "w1.1:1",
            "w1.1",
            (A, B),
            asked_at=90.0,
            answered_at=91.0,
            leases={each: Believed(each, 5, holder_of(each), 91.0, 120.0) for each in (A, B)},
            ttl=30.0,
        )
        for resource in (A, B):
            self.world.admit(resource, 5, holder_of(resource))
        self.world.acquisitions["w1.1:1"] = self.acquisition
        fields = {
            "outcome": Outcome.REFUSED,
            "error": error,
            "began_at": BEGAN,
            "ended_at": ENDED,
            **fields,
        }
        self.world.add("w1.1:1", REGISTER, **fields)

    def with_a_fault(self) -> Refusal:
        """In a run that has faults, though none that excuse anything."""
        self.fail(0.0, 1.0, Harm.WORKER, target="w7.1")
        return self

    def fail(self, since: float, until: float, *harms: Harm, target: str = "server") -> None:
        self.world.faults.append(Fault("fault", target, since, until, frozenset(harms)))

    def trust(self, *until: float) -> None:
        """Change the ends of the trust in its two leases."""
        leases = {
            resource: replace(self.acquisition.leases[resource], until=end)
            for resource, end in zip((A, B), until, strict=True)
        }
        self.world.acquisitions["w1.1:1"] = replace(self.acquisition, leases=leases)

    def overtake(self, resource: str, token: int, asked_at: float) -> None:
        """Somebody else asks then, and is admitted."""
        name = f"w2.1:{token}"
        lease = Believed(resource, token, f"holder of {token}", asked_at, asked_at + 1.0)
        self.world.acquisitions[name] = Acquisition(
            name, "w2.1", (resource,), asked_at, asked_at, {resource: lease}, ttl=TTL
        )
        self.world.admit(resource, token, lease.holder)

    def found(self, **fields) -> list[str]:
        return [each.message for each in find(WITNESS, self.world.history(**fields))]


@pytest.mark.parametrize(
    ("early", "may"), [(-1.0, True), (ROUNDED, True), (ROUNDED + MOMENT, False)]
)
def test_a_limit_may_fire_a_few_milliseconds_early(early, may):
    refusal = Refusal(ended_at=ENDED - early)
    refusal.trust(ENDED, ENDED)
    assert (refusal.found() == []) is may


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.FAILED, Outcome.UNKNOWN])
def test_the_trust_in_several_leases_ends_with_the_first(outcome):
    refusal = Refusal(outcome=outcome)
    assert refusal.found()
    refusal.trust(110.0, ENDED)
    assert refusal.found() == []


def test_the_limit_of_a_transaction_is_a_leases_length():
    refusal = Refusal()
    refusal.world.acquisitions["w1.1:1"] = replace(refusal.acquisition, ttl=ENDED - BEGAN)
    assert refusal.found() == []
    refusal.world.acquisitions["w1.1:1"] = replace(refusal.acquisition, ttl=ENDED - BEGAN + MOMENT)
    assert refusal.found()


@pytest.mark.parametrize("harm", [Harm.SESSIONS, Harm.DATABASE])
def test_a_fault_of_the_database_may_end_a_session_for_a_leases_length(harm):
    refusal = Refusal("WriteRefusedError")
    refusal.fail(60.0, BEGAN - 30.0 - MOMENT, harm)
    assert refusal.found()
    refusal.fail(60.0, BEGAN - 30.0, harm)
    assert refusal.found() == []


@pytest.mark.parametrize("error", ["LeaseExpiredError", "LeaseLostError"])
def test_a_lease_is_lost_where_the_lock_service_forgets(error):
    refusal = Refusal(error)
    refusal.fail(BEGAN, ENDED, Harm.LOCK_SERVICE)
    assert refusal.found() == []


@pytest.mark.parametrize(("over_for", "may"), [(TTL, True), (TTL + MOMENT, False)])
def test_who_may_end_sessions_may_do_so_until_the_lock_service_has_forgotten_it(over_for, may):
    refusal = Refusal().with_a_fault()
    refusal.overtake(A, 4, 90.0)
    before = refusal.world.acquisitions["w2.1:4"]
    leases = {A: replace(before.leases[A], until=BEGAN - over_for)}
    refusal.world.acquisitions["w2.1:4"] = replace(before, leases=leases, evicts=True)
    assert (refusal.found() == []) is may


# ------------------------------------------------------------------------- who was overtaken


def test_who_asked_by_then_can_have_overtaken():
    refusal = Refusal().with_a_fault()
    refusal.overtake(A, 6, ENDED + MOMENT)
    assert refusal.found()
    refusal.overtake(A, 7, ENDED)
    assert refusal.found() == []


def test_one_of_several_that_can_have_overtaken_is_enough():
    refusal = Refusal().with_a_fault()
    refusal.overtake(A, 6, 95.0)
    refusal.overtake(A, 7, 96.0)
    assert refusal.found() == []


def test_who_was_admitted_before_has_not_overtaken():
    refusal = Refusal().with_a_fault()
    refusal.overtake(A, 4, 80.0)
    assert refusal.found()


def test_a_lease_on_what_nobody_was_admitted_to_has_not_been_overtaken():
    refusal = Refusal().with_a_fault()
    refusal.world.admissions.clear()
    assert refusal.found()


@pytest.mark.parametrize("error", ["StaleFenceError", "UnfencedWriteError"])
def test_a_pruned_fence_makes_stale_or_unfenced(error):
    refusal = Refusal(error, current_token=8).with_a_fault()
    assert refusal.found()
    refusal.world.prune(A)
    assert refusal.found() == []


def test_a_lock_service_that_keeps_no_order_lets_trusted_leases_be_overtaken_without_faults():
    refusal = Refusal("StaleFenceError")
    refusal.overtake(A, 6, 95.0)
    assert refusal.found()
    assert refusal.found(keeps_order=False) == []


@pytest.mark.parametrize("current_token", [6, None])
def test_a_stale_lease_is_told_of_a_mark_of_any_of_its_resources_or_of_none(current_token):
    refusal = Refusal("StaleFenceError", current_token=current_token).with_a_fault()
    refusal.overtake(B, 6, 95.0)
    assert refusal.found() == []


def test_a_database_that_loses_what_it_acknowledged_is_excused_from_when_it_was_struck():
    refusal = Refusal("StaleFenceError").with_a_fault()
    assert refusal.found(loses_acknowledged=True)
    refusal.fail(ENDED + MOMENT, ENDED + 1.0, Harm.DATABASE)
    assert refusal.found(loses_acknowledged=True)
    refusal.fail(1.0, 2.0, Harm.DATABASE)
    assert refusal.found(loses_acknowledged=True) == []


# ------------------------------------------------------------------------- what is judged


def test_what_nobody_was_told_of_is_not_judged():
    assert Refusal(ended_at=None).found() == []


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN])
def test_without_faults_nothing_fails_that_has_no_lease(outcome):
    world = World()
    world.attempt("unfenced", REGISTER, outcome=outcome, error="OperationalError")
    (violation,) = find(WITNESS, world.history())
    assert violation.message.endswith("in a run without faults")

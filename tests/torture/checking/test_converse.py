"""Nothing is refused for nothing, something is done, and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fencing.torture.checking import longest_wait
from fencing.torture.history import Fault, Harm, Outcome
from tests.support.broken import catches, find
from tests.support.histories import REGISTER, TTL, World, two_leases

WITNESS = "refusals have a witness"

KILLED = {"outcome": Outcome.REFUSED, "error": "LeaseExpiredError"}


def with_faults() -> World:
    """Two leases in a run that has faults, though none that excuse anything."""
    world = two_leases()
    world.fault("worker stopped", "w7.1", Harm.WORKER)
    return world


# ------------------------------------------------------------------------- mistakes


@catches("nothing breaks", r"it ended with ValueError \(floor must be .*\)")
def test_an_acquisition_ends_with_an_error_of_pythons_own():
    world = two_leases()
    world.deny("register:0", error="ValueError", message="floor must be from 0 to 2**53 - 2")
    return world.history()


@catches("nothing breaks", "it ended with AttributeError")
def test_a_transaction_ends_with_an_error_of_pythons_own():
    world = with_faults()
    world.add("w2.1:1", REGISTER, outcome=Outcome.FAILED, error="AttributeError")
    return world.history()


# ------------------------------------------------------------------------- refusals


@catches(WITNESS, "refused while its leases were trusted, in a run without faults")
def test_a_trusted_lease_is_refused_without_faults():
    world = two_leases()
    world.add("w2.1:1", REGISTER, **KILLED)
    return world.history()


@catches(WITNESS, "refused while its leases were trusted, in a run without faults")
def test_a_trusted_lease_is_refused_and_given_back_at_once():
    world = two_leases()
    world.add("w2.1:1", REGISTER, **KILLED)
    history = world.history()
    refused = history.transactions[-1]

    def given_back(acquisition):
        leases = {
            resource: replace(lease, until=refused.ended_at, trusted_until=lease.until)
            for resource, lease in acquisition.leases.items()
        }
        return replace(acquisition, leases=leases)

    acquisitions = tuple(
        given_back(each) if each.name == refused.acquisition else each
        for each in history.acquisitions
    )
    return replace(history, acquisitions=acquisitions)


@catches(WITNESS, "refused while its leases were trusted, in a run without faults")
def test_a_trusted_lease_is_overtaken_without_faults():
    world = two_leases()
    world.keep("w1.1:0", world.now + 1)
    world.refuse("w1.1:0", REGISTER)
    return world.history()


@catches(WITNESS, "refused while its leases were trusted and nobody had overtaken it")
def test_a_trusted_lease_is_refused_for_nothing():
    world = with_faults()
    world.add("w2.1:1", REGISTER, **KILLED)
    return world.history()


@catches(WITNESS, "refused while its leases were trusted and nobody had overtaken it")
def test_who_overtook_it_asked_only_afterwards():
    world = with_faults()
    world.add("w2.1:1", REGISTER, **KILLED)
    world.acquire("register:0")
    return world.history()


@catches(WITNESS, "refused while its leases were trusted and nobody had overtaken it")
def test_a_fault_was_over_long_before():
    world = two_leases()
    world.fault("backend killed", "database", Harm.SESSIONS)
    world.keep("w2.1:1", world.now + 10)
    world.tick(2 * TTL)
    world.add("w2.1:1", REGISTER, **KILLED)
    return world.history()


@catches(WITNESS, "refused while its leases were trusted and nobody had overtaken it")
def test_a_fault_struck_another_workers_sessions():
    world = two_leases()
    world.add("w2.1:1", REGISTER, **KILLED)
    world.faults.append(
        Fault("COMMIT lost", "w1", 0.0, world.now + 1, frozenset({Harm.SESSIONS, Harm.DATABASE}))
    )
    return world.history()


def test_a_fault_that_struck_its_own_sessions_excuses_it():
    world = two_leases()
    world.add("w2.1:1", REGISTER, **KILLED)
    world.faults.append(Fault("COMMIT lost", "w2", 0.0, world.now + 1, frozenset({Harm.SESSIONS})))
    assert find(WITNESS, world.history()) == []


@catches(WITNESS, "refused by StaleFenceError, and nobody had overtaken it")
def test_a_lease_is_called_stale_that_is_the_newest():
    world = with_faults()
    world.tick(TTL)
    world.refuse("w2.1:1", REGISTER)
    return world.history()


@catches(WITNESS, "told of the mark 9, which was never admitted")
def test_a_stale_lease_is_told_of_a_mark_that_never_was():
    world = with_faults()
    world.refuse("w1.1:0", REGISTER, current_token=9)
    return world.history()


@catches(WITNESS, "refused by UnfencedWriteError, and had an admitted lease")
def test_an_admitted_lease_is_called_unfenced():
    world = with_faults()
    world.tick(TTL)
    world.refuse("w2.1:1", REGISTER, error="UnfencedWriteError")
    return world.history()


@catches(WITNESS, "had no lease to lose")
def test_a_look_without_a_lease_is_refused():
    world = with_faults()
    world.attempt("look", REGISTER)
    return world.history()


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN])
def test_nothing_fails_without_faults(outcome):
    world = two_leases()
    world.add("w2.1:1", REGISTER, outcome=outcome)
    (violation,) = find(WITNESS, world.history())
    assert violation.message == (
        f"it is {outcome} while its leases were trusted, in a run without faults"
    )
    world.fault("proxy", "database", Harm.DATABASE)
    assert find(WITNESS, world.history()) == []


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.UNKNOWN])
def test_a_limit_may_end_a_session_without_faults(outcome):
    world = two_leases()
    world.tick(TTL)
    world.add("w2.1:1", REGISTER, outcome=outcome)
    assert find(WITNESS, world.history()) == []


def overtaken(world):
    world.admit("register:0", 7, "")
    world.refuse("w2.1:1", REGISTER)


def pruned(world):
    world.prune("register:0")
    world.refuse("w2.1:1", "register:1/0", error="UnfencedWriteError", current_token=None)


def trust_over(world):
    world.tick(TTL)
    world.add("w2.1:1", REGISTER, **KILLED)


def trust_renewed_but_the_limit_not(world):
    world.keep("w2.1:1", world.now + 10)
    world.add("w2.1:1", REGISTER, began_at=world.now - TTL, **KILLED)


def sessions_ended(world):
    world.fault("backend killed", "database", Harm.SESSIONS)
    world.add("w2.1:1", REGISTER, **KILLED)


def lock_forgotten(world):
    world.fault("FLUSHALL", "redis", Harm.LOCK_SERVICE)
    world.add("w2.1:1", REGISTER, outcome=Outcome.REFUSED, error="LeaseLostError")


def evicted(world):
    world.deny("register:0", evicts=True, blocked_by=(1,))
    world.tick(0.1)
    world.add("w2.1:1", REGISTER, **KILLED)


@pytest.mark.parametrize(
    "reason",
    [
        overtaken,
        pruned,
        trust_over,
        trust_renewed_but_the_limit_not,
        sessions_ended,
        lock_forgotten,
        evicted,
    ],
)
def test_a_refusal_has_a_witness(reason):
    world = with_faults()
    world.marks["register:1"] = (0, "")
    reason(world)
    assert find(WITNESS, world.history()) == []


def test_what_overtook_it_may_be_lost_by_the_database():
    world = with_faults()
    world.fault("standby promoted", "database", Harm.DATABASE)
    world.keep("w2.1:1", world.now + 10)
    world.tick(5)
    world.refuse("w2.1:1", REGISTER)
    assert find(WITNESS, world.history()) != []
    assert find(WITNESS, world.history(loses_acknowledged=True)) == []


# ------------------------------------------------------------------------- acquisitions


def denied(world: World, **fields) -> World:
    """Somebody asks for a free lease in vain."""
    world.tick(10)
    world.deny("register:0", **{"asked_at": world.now - 8, "patience": 8.0, **fields})
    # Nobody has it, though `deny` has seen to that.
    for name, acquisition in world.acquisitions.items():
        leases = {
            resource: replace(lease, until=min(lease.until, lease.since + TTL))
            for resource, lease in acquisition.leases.items()
        }
        world.acquisitions[name] = replace(acquisition, leases=leases)
    return world


@catches(WITNESS, "not granted, and nobody was in the way")
def test_a_lease_is_denied_that_is_free():
    return denied(two_leases()).history()


@catches(WITNESS, "the lock service failed, and no fault of it is known")
def test_the_lock_service_fails_without_a_fault():
    world = two_leases()
    world.deny("register:0", error="LockServiceError")
    return world.history()


@catches(WITNESS, "not granted, and nobody was in the way")
def test_two_that_were_denied_do_not_excuse_each_other():
    return denied(denied(two_leases())).history()


def test_a_denial_has_a_witness():
    world = two_leases()
    world.deny("register:0")
    assert find(WITNESS, world.history()) == []
    world = denied(two_leases(), blocked_by=(4711,))
    assert find(WITNESS, world.history()) == []
    for harm in (Harm.LOCK_SERVICE, Harm.DATABASE):
        world = denied(two_leases())
        world.fault("killed", "server", harm)
        assert find(WITNESS, world.history()) == []
    world = denied(two_leases())
    world.fault("worker stopped", "w9", Harm.WORKER)
    assert find(WITNESS, world.history()) == []


def test_who_is_admitted_in_vain_is_in_the_way_of_others():
    world = denied(two_leases(), blocked_by=(4711,))
    since = world.now - 4
    name = world.deny("register:0")
    world.acquisitions[name] = replace(world.acquisitions[name], asked_at=since)
    assert find(WITNESS, world.history()) == []


# ------------------------------------------------------------------------- successors


@catches("successors proceed", "nobody was in the way for 8.00. s")
def test_a_successor_waits_for_nobody():
    return denied(two_leases()).history()


def test_a_successor_is_granted_or_knows_why():
    bound = 2 * TTL + 2
    assert find("successors proceed", denied(two_leases(), blocked_by=(4711,)).history()) == []
    short = denied(two_leases())
    name = next(reversed(short.acquisitions))
    short.acquisitions[name] = replace(short.acquisitions[name], asked_at=short.now - bound + 0.01)
    assert find("successors proceed", short.history()) == []
    excused = denied(two_leases())
    excused.fault("killed", "redis", Harm.LOCK_SERVICE)
    excused.faults[-1] = replace(excused.faults[-1], since=excused.now - 8)
    assert find("successors proceed", excused.history()) == []
    meanwhile = denied(two_leases())
    lease = meanwhile.acquisitions["w2.1:1"].leases["register:0"]
    meanwhile.keep("w2.1:1", meanwhile.now - 2)
    assert lease.until < meanwhile.now - 8
    assert find("successors proceed", meanwhile.history()) == []


def test_a_lock_service_may_wait_for_somebody_who_is_gone():
    bound = 2 * TTL + 2
    history = denied(two_leases()).history()
    assert find("successors proceed", replace(history, lingers=8.1 - bound)) == []
    assert find("successors proceed", replace(history, lingers=7.9 - bound))
    held_before = denied(two_leases()).history()
    assert find(WITNESS, held_before)
    assert find(WITNESS, replace(held_before, lingers=60.0)) == []


@catches("successors proceed", "admission took 2.999 s longer than the transactions that were open")
def test_an_admission_waits_for_transactions_that_began_later():
    world = two_leases()
    began = world.now
    world.add("w2.1:1", REGISTER)
    until = world.now
    world.tick(1)
    world.add("w2.1:1", REGISTER)
    world.now = until + 3
    name = world.acquire("register:0")
    world.acquisitions[name] = replace(
        world.acquisitions[name], admission_began_at=began + 0.001, answered_at=until + 2.999
    )
    return world.history()


def test_an_admission_waits_for_transactions_that_were_open():
    world = two_leases()
    began = world.now
    open_then = world.add("w2.1:1", REGISTER)
    world.transactions[-1] = replace(open_then, began_at=began - 0.001, ended_at=began + 2.5)
    world.now = began + 3
    name = world.acquire("register:0")
    world.acquisitions[name] = replace(world.acquisitions[name], admission_began_at=began)
    assert find("successors proceed", world.history()) == []


def test_the_longest_wait_is_from_the_end_of_the_trust_before():
    world = two_leases()
    assert longest_wait(World().history()) is None
    until = world.acquisitions["w2.1:1"].leases["register:0"].until
    name = world.acquire("register:0")
    world.acquisitions[name] = replace(
        world.acquisitions[name], asked_at=until - 0.2, answered_at=until + 0.3
    )
    waited, who = longest_wait(world.history())
    assert who == name
    assert waited == pytest.approx(0.3)


# ------------------------------------------------------------------------- work


@catches("work was done", "nothing was accepted")
def test_a_run_accepts_nothing():
    world = World()
    world.acquire("register:0")
    return world.history()


def test_a_run_that_was_interrupted_may_have_accepted_nothing_yet():
    assert find("work was done", replace(World().history(), interrupted=True)) == []


@pytest.mark.parametrize(
    "sort", [{"kind": "append"}, {"path": "orm"}, {"isolation": "SERIALIZABLE"}]
)
def test_one_sort_of_transaction_is_never_committed(sort):
    world = two_leases()
    for _ in range(50):
        tried = world.add("w2.1:1", REGISTER, outcome=Outcome.CONFLICT)
        world.transactions[-1] = replace(tried, **sort)
    (violation,) = find("work was done", world.history())
    assert violation.message == "none of 50 transactions was committed"
    assert violation.subject in sort.values()
    done = world.add("w2.1:1", REGISTER)
    world.transactions[-1] = replace(done, **sort)
    assert find("work was done", world.history()) == []


def test_few_may_all_have_failed_by_bad_luck():
    world = two_leases()
    for _ in range(49):
        tried = world.add("w2.1:1", REGISTER, outcome=Outcome.CONFLICT)
        world.transactions[-1] = replace(tried, path="orm")
    assert find("work was done", world.history()) == []


def test_attempts_that_must_be_refused_are_no_work():
    world = two_leases()
    for _ in range(50):
        tried = world.attempt("unfenced", REGISTER)
        world.transactions[-1] = replace(tried, path="orm")
    assert find("work was done", world.history()) == []


# ------------------------------------------------------------------------- what excuses nothing


@pytest.mark.parametrize(
    "fault",
    [
        Fault("long before", "w9.1", 0.0, 1.0, frozenset({Harm.WORKER})),
        Fault("long after", "w9.1", 1e6, 1e6, frozenset({Harm.WORKER})),
        Fault("somebody else", "w1.1", 0.0, 1e6, frozenset({Harm.WORKER})),
        Fault("of no harm to workers", "w9.1", 0.0, 1e6),
        Fault("long before", "redis", 0.0, 1.0, frozenset({Harm.LOCK_SERVICE})),
        Fault("long after", "redis", 1e6, 1e6, frozenset({Harm.LOCK_SERVICE})),
        Fault("of no harm to servers", "redis", 0.0, 1e6),
    ],
    ids=lambda fault: f"{fault.kind}: {fault.target}",
)
def test_a_fault_excuses_only_what_it_can_have_done(fault):
    world = denied(two_leases())
    world.faults.append(fault)
    assert find(WITNESS, world.history()) != []
    assert find("successors proceed", world.history()) != []


@pytest.mark.parametrize("target", ["", "w9", "w9.1"])
def test_a_worker_that_was_stopped_is_to_blame_itself(target):
    world = denied(two_leases())
    world.fault("worker stopped", target, Harm.WORKER)
    world.faults[-1] = replace(world.faults[-1], since=world.now - 8)
    assert find(WITNESS, world.history()) == []
    assert find("successors proceed", world.history()) == []


@pytest.mark.parametrize(("target", "harm"), [("database", Harm.DATABASE), ("w0.1", Harm.WORKER)])
def test_an_admission_may_be_slow_by_a_fault(target, harm):
    world = two_leases()
    name = world.acquire("register:0")
    granted = world.acquisitions[name]
    world.acquisitions[name] = replace(
        granted, admission_began_at=granted.asked_at, answered_at=granted.asked_at + 3
    )
    assert find("successors proceed", world.history()) != []
    world.fault("slow", target, harm)
    assert find("successors proceed", world.history()) == []


def test_a_lock_that_was_forgotten_does_not_make_stale():
    world = with_faults()
    world.fault("FLUSHALL", "redis", Harm.LOCK_SERVICE)
    world.add("w2.1:1", REGISTER, outcome=Outcome.REFUSED, error="WriteRefusedError")
    assert find(WITNESS, world.history()) != []


def test_trust_in_several_leases_counts_for_those_that_were_presented():
    world = with_faults()
    world.add("w2.1:1", REGISTER, **KILLED)
    granted = world.acquisitions["w2.1:1"]
    other = replace(granted.leases["register:0"], resource="register:5", until=0.0)
    world.acquisitions["w2.1:1"] = replace(granted, leases={**granted.leases, "register:5": other})
    assert find(WITNESS, world.history()) != []


def another(world, name="w8.1:99", **fields):
    """Somebody else asks for the same at the same time."""
    last = next(reversed(world.acquisitions.values()))
    world.acquisitions[name] = replace(last, name=name, worker="w8.1", **fields)


def test_who_was_denied_at_the_same_time_was_in_nobodys_way():
    world = denied(two_leases())
    another(world)
    assert len(find(WITNESS, world.history())) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"answered_at": None},
        {"blocked_by": (4711,)},
        {"error": "OperationalError"},
        {"resources": ("register:0", "register:5")},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_who_may_have_had_the_lock_was_in_the_way(fields):
    world = denied(two_leases())
    another(world, **fields)
    denied_for = {each.subject for each in find(WITNESS, world.history())}
    assert (
        next(name for name in reversed(world.acquisitions) if name != "w8.1:99") not in denied_for
    )


def test_who_had_the_lock_long_before_was_not_in_the_way():
    world = two_leases()
    world.keep("w1.1:0", world.now + 1)
    world.tick(3)
    denied(world)
    assert len(find(WITNESS, world.history())) == 1

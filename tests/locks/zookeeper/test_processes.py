"""Holders and waiters in processes that are killed, stopped and forked."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fencing import LeaseLostError, ZooKeeperLockService
from fencing.clock import now
from tests.support.processes import ChildProcess
from tests.support.waiting import until_waiting

if TYPE_CHECKING:
    from tests.support.child import Parent

SECONDS = 20


def service(url: str, namespace: str, session: float = 1.0) -> ZooKeeperLockService:
    return ZooKeeperLockService.from_url(url, namespace=namespace, session_timeout=session)


def hold(parent: Parent, url: str, namespace: str, ttl: float, how: str) -> None:
    locks = service(url, namespace)
    told = threading.Event()
    lease = locks.acquire("r", ttl=ttl, keepalive=how == "kept", on_lost=lambda _: told.set())
    parent.report("holds", token=lease.token, until=lease.trusted_until)
    parent.wait_for("go on")
    lost = lease.lost
    try:
        lease.renew()
    except LeaseLostError:
        parent.report("lost", lost=lost, told=told.wait(SECONDS))


def test_a_killed_holder_s_lock_is_free_when_its_ttl_is_over(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str
) -> None:
    with ChildProcess(hold, zookeeper_url, zookeeper_namespace, 2.0, "once") as child:
        held = child.wait_for("holds")
        child.kill()
        successor = locks.acquire("r", ttl=30, blocking_timeout=SECONDS)
    # Not before: whoever was only stopped would trust it still.
    assert now() >= held["until"]
    assert successor.token > held["token"]
    successor.release()


def test_a_killed_holder_s_lock_is_free_for_who_does_not_wait(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str
) -> None:
    with ChildProcess(hold, zookeeper_url, zookeeper_namespace, 0.5, "once") as child:
        child.wait_for("holds")
        child.kill()
    ended = threading.Event()
    while locks.locked("r"):
        ended.wait(0.05)
    lease = locks.try_acquire("r", ttl=30)
    assert lease is not None
    lease.release()


def test_a_holder_that_was_stopped_loses_its_lease_not_before_its_end_and_is_told(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str
) -> None:
    """Its session ends first, after a second: that is nothing to its lease."""
    with ChildProcess(hold, zookeeper_url, zookeeper_namespace, 3.0, "kept") as child:
        child.wait_for("holds")
        child.suspend()
        stopped = now()
        successor = locks.acquire("r", ttl=30, blocking_timeout=SECONDS)
        assert now() - stopped > 1.9  # of the last renewal, at a third of the ttl, 2 s are left
        child.tell("go on")
        child.resume()
        assert child.wait_for("lost") == {"event": "lost", "lost": True, "told": True}
        child.check()
    assert successor.remaining > 0
    successor.release()


def wait_in_line(parent: Parent, url: str, namespace: str, session: float) -> None:
    locks = service(url, namespace, session)
    parent.report("ready")
    parent.wait_for("ask")
    with locks.acquire("r", ttl=30, fair=True) as lease:
        parent.report("holds", token=lease.token)
        parent.wait_for("go on")
    parent.report("done")


def test_processes_are_served_in_the_order_of_their_asking(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str
) -> None:
    arguments = zookeeper_url, zookeeper_namespace, 5.0
    lease = locks.acquire("r", ttl=60)
    with (
        ChildProcess(wait_in_line, *arguments) as first,
        ChildProcess(wait_in_line, *arguments) as second,
    ):
        for number, child in enumerate((first, second), start=1):
            child.wait_for("ready")
            child.tell("ask")
            until_waiting(locks, number)
        lease.release()
        earlier = first.wait_for("holds")["token"]
        assert not [event for event in second.events if event["event"] == "holds"]
        first.tell("go on")
        assert second.wait_for("holds")["token"] > earlier
        second.tell("go on")
        for child in (first, second):
            child.check()


def test_a_waiter_that_was_killed_is_passed_over(
    locks: Any, zookeeper_url: str, zookeeper_namespace: str
) -> None:
    lease = locks.acquire("r", ttl=60)
    with ChildProcess(wait_in_line, zookeeper_url, zookeeper_namespace, 1.0) as child:
        child.wait_for("ready")
        child.tell("ask")
        until_waiting(locks, 1)
        child.kill()
    lease.release()
    locks.acquire("r", ttl=30, blocking_timeout=SECONDS).release()


def fork_under_a_lease(parent: Parent, url: str, namespace: str) -> None:
    locks = service(url, namespace)
    lease = locks.acquire("r", ttl=60)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            assert lease.lost
            lease.release()
            assert locks.try_acquire("r") is None
            locks.acquire("own", ttl=30).release()
            locks.close()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    parent.report("forked", status=os.waitstatus_to_exitcode(status), owned=lease.owned())
    lease.release()
    locks.close()


def test_a_forked_child_has_a_session_of_its_own(
    zookeeper_url: str, zookeeper_namespace: str
) -> None:
    with ChildProcess(fork_under_a_lease, zookeeper_url, zookeeper_namespace) as child:
        assert child.wait_for("forked") == {"event": "forked", "status": 0, "owned": True}
        child.check()


def race(parent: Parent, url: str, namespace: str, rounds: int) -> None:
    locks = service(url, namespace, 5.0)
    parent.report("ready")
    parent.wait_for("go")
    tokens = []
    for _ in range(rounds):
        with locks.acquire("r", ttl=30) as lease:
            tokens.append(lease.token)
            held = locks.acquire("inside", ttl=30, blocking=False)
            held.release()
    parent.report("tokens", tokens=tokens)


@pytest.mark.parametrize("rounds", [30])
def test_two_processes_take_turns_and_never_meet(
    zookeeper_url: str, zookeeper_namespace: str, rounds: int
) -> None:
    arguments = zookeeper_url, zookeeper_namespace, rounds
    with ChildProcess(race, *arguments) as one, ChildProcess(race, *arguments) as two:
        for child in (one, two):
            child.wait_for("ready")
        for child in (one, two):
            child.tell("go")
        mine, theirs = (child.wait_for("tokens", 60)["tokens"] for child in (one, two))
        for child in (one, two):
            child.check()
    assert len({*mine, *theirs}) == 2 * rounds
    assert mine == sorted(mine)
    assert theirs == sorted(theirs)

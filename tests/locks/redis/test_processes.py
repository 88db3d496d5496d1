"""Leases and processes: children own nothing of their parent, and who was stopped is told."""

from __future__ import annotations

import logging
import multiprocessing
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fencing import LeaseLostError, RedisLockService
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.child import Parent

TTL = 2.0


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


def hold_on(lease: Any, seconds: float) -> bool:
    """Whether a lease lives for so long."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if lease.lost:
            return False
        time.sleep(0.02)
    return True


def fork_under_a_kept_lease(parent: Parent, url: str, namespace: str) -> None:
    locks = RedisLockService.from_url(url, namespace=namespace)
    lost: list[Any] = []
    lease = locks.acquire("r", ttl=TTL, keepalive=True, on_lost=lost.append)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            names = {thread.name for thread in threading.enumerate()}
            assert not names & {"fencing-keepalive", "fencing-loss"}
            assert lease.lost
            lease.release()
            assert locks.try_acquire("r") is None
            with pytest.raises(LeaseLostError, match="parent"):
                lease.renew()
            told = threading.Event()
            with locks.acquire("own", ttl=TTL, keepalive=True, on_lost=lambda _: told.set()) as own:
                assert hold_on(own, 1.2 * TTL)
            watched = locks.acquire("watched", ttl=0.1, on_lost=lambda _: told.set())
            assert told.wait(20)
            assert watched.lost
            assert lost == []
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    parent.report(
        "forked",
        status=os.waitstatus_to_exitcode(status),
        held=hold_on(lease, 1.2 * TTL),
        lost=len(lost),
    )
    lease.release()


def test_a_forked_child_neither_renews_nor_ends_its_parent_s_lease(
    redis_url: str, redis_namespace: str
) -> None:
    with ChildProcess(fork_under_a_kept_lease, redis_url, redis_namespace) as child:
        forked = child.wait_for("forked")
        child.check()
    assert forked == {"event": "forked", "status": 0, "held": True, "lost": 0}


def fork_and_be_killed(parent: Parent, url: str, namespace: str) -> None:
    locks = RedisLockService.from_url(url, namespace=namespace)
    lease = locks.acquire("r", ttl=TTL, keepalive=True)
    if os.fork() == 0:
        parent.report("forked")
        time.sleep(60)
        os._exit(0)
    parent.wait_for("die")
    del lease
    os._exit(0)


def test_what_a_forked_child_inherited_is_not_renewed_after_its_parent_died(
    locks: RedisLockService, redis_url: str, redis_namespace: str
) -> None:
    with ChildProcess(fork_and_be_killed, redis_url, redis_namespace) as child:
        child.wait_for("forked")
        assert locks.try_acquire("r") is None
        child.tell("die")
        locks.acquire("r", blocking_timeout=20).release()


def acquire_for_itself(url: str, namespace: str, outcomes: Any) -> None:
    """What a child of multiprocessing does."""
    with RedisLockService.from_url(url, namespace=namespace) as locks:
        taken = locks.try_acquire("r") is None
        with locks.acquire("own", ttl=TTL, keepalive=True) as own:
            outcomes.put((taken, hold_on(own, 0.5)))


def start_children(parent: Parent, method: str, url: str, namespace: str) -> None:
    locks = RedisLockService.from_url(url, namespace=namespace)
    lease = locks.acquire("r", ttl=TTL, keepalive=True)
    context: Any = multiprocessing.get_context(method)
    outcomes = context.SimpleQueue()
    process = context.Process(target=acquire_for_itself, args=(url, namespace, outcomes))
    process.start()
    taken, kept = outcomes.get()
    process.join()
    parent.report(
        "joined", taken=taken, kept=kept, status=process.exitcode, held=hold_on(lease, 1.2 * TTL)
    )
    lease.release()


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_children_of_multiprocessing_own_nothing_and_can_acquire(
    method: str, redis_url: str, redis_namespace: str
) -> None:
    with ChildProcess(start_children, method, redis_url, redis_namespace) as child:
        joined = child.wait_for("joined")
        child.check()
    assert joined == {"event": "joined", "taken": True, "kept": True, "status": 0, "held": True}


def be_stopped(parent: Parent, url: str, namespace: str) -> None:
    logging.disable()
    locks = RedisLockService.from_url(url, namespace=namespace)
    told = threading.Event()
    lease = locks.acquire("r", ttl=1, keepalive=True, on_lost=lambda _: told.set())
    parent.report("ready")
    parent.wait_for("go on")
    lost = lease.lost
    try:
        lease.renew()
    except LeaseLostError:
        parent.report("resumed", lost=lost, told=told.wait(20))


def test_a_process_that_was_stopped_is_told_when_it_resumes(
    locks: RedisLockService, redis_url: str, redis_namespace: str
) -> None:
    with ChildProcess(be_stopped, redis_url, redis_namespace) as child:
        child.wait_for("ready")
        child.suspend()
        successor = locks.acquire("r", blocking_timeout=20)
        child.tell("go on")
        child.resume()
        assert child.wait_for("resumed") == {"event": "resumed", "lost": True, "told": True}
        child.check()
    assert successor.remaining > 0
    successor.release()


def test_a_lease_may_be_released_by_another_thread(locks: RedisLockService) -> None:
    lease = locks.acquire("r", keepalive=True)
    thread = threading.Thread(target=lease.release)
    thread.start()
    thread.join()
    assert lease.released
    assert locks.try_acquire("r") is not None

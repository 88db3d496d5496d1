"""What is done to a ZooKeeper is done."""

from __future__ import annotations

import pytest

import fencing
from fencing.torture.services.zookeeper import sessions
from tests.support.striking import fixture_of

pytestmark = pytest.mark.slow

zookeeper = fixture_of("zookeeper")


def test_killed_it_keeps_its_locks(zookeeper):
    with zookeeper.locks() as locks:
        locks.acquire("a", ttl=60.0)
        before = zookeeper.servers.server.pid
        zookeeper.perform("ZooKeeper killed")
        assert zookeeper.servers.server.pid != before
        zookeeper.await_grants(locks)
        assert locks.locked("a")
    assert not zookeeper.kinds["ZooKeeper killed"].breaks_order


def test_a_session_ends_and_no_lock_by_that(zookeeper):
    with zookeeper.locks() as locks:
        locks.acquire("b", ttl=60.0)
        before = sessions(zookeeper.servers.server)
        assert before
        zookeeper.perform("session ended")
        assert set(sessions(zookeeper.servers.server)).isdisjoint(before)
        assert locks.locked("b")
        zookeeper.await_grants(locks)
    assert not zookeeper.kinds["session ended"].breaks_order


def test_it_does_not_answer_for_a_while(zookeeper):
    with zookeeper.locks() as locks:
        with zookeeper.during("ZooKeeper stopped"), pytest.raises(fencing.LockServiceError):
            locks.acquire("d", blocking=False)
        zookeeper.await_grants(locks)


def test_emptied_it_begins_anew(zookeeper):
    with zookeeper.locks() as locks:
        locks.acquire("f", ttl=60.0)
        zookeeper.perform("ZooKeeper emptied")
        zookeeper.await_grants(locks)
        assert not locks.locked("f")


def test_restored_it_forgets_and_gives_tokens_again(zookeeper):
    with zookeeper.locks() as locks:
        steps = zookeeper.begun_and_served("ZooKeeper restored")
        zookeeper.await_grants(locks)
        last = 0
        for _ in range(20):
            last = locks.acquire("g", ttl=60.0).token
            locks.force_release("g")
        locks.acquire("g", ttl=60.0)
        for seconds in steps:
            zookeeper.wait(seconds)
        zookeeper.await_grants(locks)
        assert not locks.locked("g")
        assert locks.acquire("g", ttl=60.0, blocking_timeout=30.0).token < last

"""What is done to an etcd is done."""

from __future__ import annotations

import pytest

import fencing
from tests.support.striking import fixture_of

pytestmark = pytest.mark.slow

etcd = fixture_of("etcd")


def test_killed_it_keeps_its_locks(etcd):
    with etcd.locks() as locks:
        locks.acquire("a", ttl=60.0)
        before = etcd.servers.server.pid
        etcd.perform("etcd killed")
        assert etcd.servers.server.pid != before
        assert locks.locked("a")
    assert not etcd.kinds["etcd killed"].breaks_order


def test_it_does_not_answer_for_a_while(etcd):
    with etcd.locks() as locks:
        with etcd.during("etcd stopped"), pytest.raises(fencing.LockServiceError):
            locks.acquire("b", blocking=False)
        etcd.await_grants(locks)


def test_restored_it_forgets_and_gives_tokens_again(etcd):
    with etcd.locks() as locks:
        steps = etcd.begun_and_served("etcd restored")
        last = 0
        for _ in range(20):
            last = locks.acquire("d", ttl=60.0).token
            locks.force_release("d")
        locks.acquire("d", ttl=60.0)
        for seconds in steps:
            etcd.wait(seconds)
        assert not locks.locked("d")
        assert locks.acquire("d", ttl=60.0, blocking_timeout=30.0).token < last


def test_emptied_it_begins_anew(etcd):
    with etcd.locks() as locks:
        locks.acquire("e", ttl=60.0)
        etcd.perform("etcd emptied")
        assert not locks.locked("e")

"""An ensemble of three that loses its leader."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencing import LockServiceError, ZooKeeperLockService
from fencing.embedded.zookeeper import Ensemble


@pytest.mark.slow
def test_leases_outlive_their_leader_and_tokens_go_on() -> None:
    with (
        Ensemble() as ensemble,
        ZooKeeperLockService.from_url(ensemble.url, session_timeout=5.0) as locks,
        ThreadPoolExecutor() as threads,
    ):
        lease = locks.acquire("r", ttl=120)
        assert lease.token > 2**32
        waiting = threads.submit(locks.acquire, "r", ttl=60, fair=True)
        pause = threading.Event()
        while locks.inspect("r").waiters != 1:
            pause.wait(0.02)
        old = ensemble.leader
        old.kill()
        owned = None
        for _ in range(100):  # an election takes a moment
            try:
                owned = lease.owned()
                break
            except LockServiceError:
                pause.wait(0.1)
        assert owned is True
        lease.renew()
        lease.release()
        try:
            successor = waiting.result(30)
        except LockServiceError:  # the election took longer than a waiter's patience
            successor = locks.acquire("r", ttl=60)
        assert successor.token > lease.token + 2**32 - 2**16
        successor.release()

        # A dead holder's node that another leader has stamped is judged by our own clock.
        locks.acquire("dead", ttl=1.0)
        ensemble.leader.pid  # noqa: B018 - there is one
        locks.acquire("dead", ttl=60, blocking_timeout=20).release()

        # Without a quorum nothing is granted, and that is said in time.
        for server in ensemble.servers:
            if server is not old:
                server.kill()
                break
        with pytest.raises(LockServiceError):
            locks.acquire("r", blocking_timeout=1.0)

"""While ZooKeeper is faultless, nobody trusts a lease while another does: on one clock for all."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

from fencing import LockServiceError, ZooKeeperLockService
from fencing.clock import now
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from tests.support.child import Parent

SECONDS = 6.0
TTLS = (0.1, 0.25, 0.5)


def hold_and_forget(parent: Parent, url: str, namespace: str, seed: int) -> None:
    """Acquires, renews, releases or forgets leases; reports when it trusted each."""
    chance = random.Random(seed)
    trusted = []
    locks = ZooKeeperLockService.from_url(url, namespace=namespace, session_timeout=1.0)
    parent.report("ready")
    parent.wait_for("go")
    end = now() + SECONDS
    while now() < end:
        ttl = chance.choice(TTLS)
        try:
            if chance.random() < 0.3:
                lease = locks.try_acquire("r", ttl=ttl)
                if lease is None:
                    continue
            else:
                lease = locks.acquire("r", ttl=ttl, fair=chance.random() < 0.3)
        except LockServiceError:  # granted too late, on a machine that is busy
            continue
        began, ends = now(), lease.trusted_until
        if chance.random() < 0.3:
            lease.renew(chance.choice(TTLS))
            ends = max(ends, lease.trusted_until)
        if chance.random() < 0.5:
            ends = min(ends, now())
            lease.release()
        trusted.append((began, ends, lease.token))
    parent.report("trusted", intervals=trusted)


def test_trust_never_overlaps(zookeeper_url: str, zookeeper_namespace: str) -> None:
    """Also of holders that neither release nor end, and are judged by who comes after them."""
    children = [
        ChildProcess(hold_and_forget, zookeeper_url, zookeeper_namespace, seed) for seed in range(3)
    ]
    intervals: list[tuple[float, float, int]] = []
    with children[0], children[1], children[2]:
        for child in children:
            child.wait_for("ready")
        for child in children:
            child.tell("go")
        for child in children:
            intervals += child.wait_for("trusted", 60)["intervals"]
            child.check()
    intervals.sort()
    assert len(intervals) > 20
    for (_, ends, earlier), (begins, _, later) in itertools.pairwise(intervals):
        assert ends <= begins
        assert earlier < later

"""What is done to a primary that Sentinels watch, and to its replicas, is done."""

from __future__ import annotations

import pytest

from tests.support.striking import fixture_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

watched = fixture_of("sentinel")


ATTEMPTS = 5
"""At faults by which a replica is promoted: if the Sentinels fail to agree, the fault gives up."""


@pytest.mark.parametrize("name", ["primary killed", "primary stopped", "failover"])
def test_a_replica_becomes_the_primary(watched, name):
    before = watched.servers.watched.primary

    def is_promoted() -> bool:
        watched.perform(name)
        return watched.servers.watched.primary is not before

    assert any(is_promoted() for _ in range(ATTEMPTS))


def test_the_primary_is_back_without_its_keys(watched):
    before = watched.servers.watched.primary
    with watched.locks() as locks:
        watched.await_grants(locks)
        locks.acquire("a", ttl=60.0)
        watched.perform("primary restarted")
        watched.await_grants(locks)
        # On a busy machine it was away for so long that another one has taken its place.
        assert not locks.locked("a") or watched.servers.watched.primary is not before


def test_what_replicas_had_not_heard_of_is_forgotten(watched):
    before = watched.servers.watched.primary
    with watched.locks() as locks:

        def is_promoted() -> bool:
            watched.await_grants(locks)
            locks.force_release("new")
            steps = watched.begun("replicas behind")
            locks.acquire("new", ttl=60.0)
            for seconds in steps:
                watched.wait(seconds)
            return watched.servers.watched.primary is not before

        assert any(is_promoted() for _ in range(ATTEMPTS))
        watched.await_grants(locks)
        assert not locks.locked("new")

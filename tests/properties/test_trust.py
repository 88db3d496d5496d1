"""What is believed of a lease never outlasts what the lock service keeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencing.errors import FencingUsageError, LeaseLostError
from fencing.lease import Lease, margin, trust_ends
from fencing.request import MAX_TOKEN, MAX_TTL, MIN_TTL
from tests.properties.strategies import resources
from tests.support.scripted import ScriptedLocks

ttls = st.floats(MIN_TTL, MAX_TTL)
moments = st.floats(0, 1e9)


def lease_of(**facts: Any) -> Lease:
    given_ = {"resource": "r", "token": 1, "holder": "a" * 32, "owner": "me", "ttl": 10.0}
    return Lease(ScriptedLocks(), **{**given_, "asked_at": 0.0, **facts})


@given(moments, ttls)
def test_trust_ends_before_the_lock_does(asked_at, ttl):
    assert trust_ends(asked_at, ttl) < asked_at + ttl
    assert margin(ttl) >= ttl / 100


@given(moments, ttls, ttls)
def test_a_longer_ttl_is_trusted_longer(asked_at, one, other):
    one, other = min(one, other), max(one, other)
    assert trust_ends(asked_at, one) <= trust_ends(asked_at, other)


@given(
    ttls,
    st.lists(st.tuples(st.floats(0, 1e6), ttls, st.booleans()), max_size=10),
    st.none() | ttls,
)
def test_no_order_of_renewals_makes_it_outlast_the_longest(ttl, renewals, max_lifetime):
    """In whatever order the answers are noted; in the background nothing is ever shortened."""
    lease = lease_of(ttl=ttl)
    if max_lifetime is not None:
        lease.keep(max_lifetime)
    granted = [trust_ends(0.0, ttl)]
    for asked_at, seconds, in_background in renewals:
        before = lease.trusted_until
        lease.note_renewed(asked_at=asked_at, ttl=seconds, in_background=in_background)
        granted.append(trust_ends(asked_at, seconds))
        assert lease.trusted_until <= max(granted)
        if max_lifetime is not None and lease.trusted_until != before:
            assert lease.trusted_until <= max_lifetime
        if in_background:
            assert lease.trusted_until >= before
        elif max_lifetime is None:
            assert lease.trusted_until == granted[-1]


@given(st.lists(st.integers(1, MAX_TOKEN), min_size=1), resources)
def test_an_admitted_lease_keeps_its_token(tokens, resource):
    lease = lease_of(resource=resource)
    for token in tokens:
        lease.note_token(token)
    lease.note_admitted()
    for token in tokens:
        with pytest.raises(FencingUsageError):
            lease.note_token(token)
    assert lease.token == tokens[-1]


@given(st.permutations(["lost", "released", "renewed", "releasing", "expired"]))
def test_what_is_over_stays_over(events):
    lease = lease_of()
    lease.trusted_until = 1e12  # whatever the clock says
    was_over = False
    for event in events:
        if event == "lost":
            lease.note_lost()
        elif event == "released":
            lease.note_released()
        elif event == "renewed":
            lease.note_renewed(asked_at=1e12, ttl=10)
        elif event == "releasing":
            lease.note_releasing()
        else:
            lease.note_expired()
        over = lease.lost or lease.released
        assert over or not was_over
        was_over = over
        if over:
            with pytest.raises(LeaseLostError):
                lease.raise_if_over()

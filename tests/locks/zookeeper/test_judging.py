"""When a holder's time is over, by which clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fencing.locks.zookeeper.judging import Reference, Sightings

TTL = 10_000  # milliseconds
EPOCH = 1 << 32


def node(mtime: int, mzxid: int = EPOCH + 5) -> Any:
    return SimpleNamespace(mtime=mtime, mzxid=mzxid, ctime=mtime, czxid=mzxid)


def reference(stamp: int, at: float, czxid: int = EPOCH + 9) -> Reference:
    return Reference.made(node(stamp, czxid), at)


def test_by_one_leader_s_clock_its_age_counts():
    """It was written 7 s before what we have written ourselves at 100."""
    over = Sightings().ends("a", node(1_000), TTL, reference(8_000, 100.0), at=100.5)
    assert 103.0 < over < 103.01


def test_a_renewal_after_what_we_have_written_counts_as_well():
    over = Sightings().ends("a", node(9_000), TTL, reference(8_000, 100.0), at=101.5)
    assert 111.0 < over < 111.01


def test_by_another_leader_s_clock_only_what_was_seen_counts():
    """That leader's clock may be ahead by hours."""
    seen = Sightings()
    later = 2 * EPOCH + 1
    for at in (100.0, 104.0):
        assert seen.ends("a", node(1_000), TTL, reference(90_000, at, later), at=at) == 110.0


def test_without_a_clock_only_what_was_seen_counts():
    seen = Sightings()
    assert seen.ends("a", node(1_000), TTL, None, at=100.0) == 110.0
    assert seen.ends("a", node(1_000), TTL, None, at=109.0) == 110.0


def test_what_was_written_again_was_not_seen_before():
    seen = Sightings()
    seen.ends("a", node(1_000), TTL, None, at=100.0)
    assert seen.ends("a", node(2_000, EPOCH + 6), TTL, None, at=109.0) == 119.0


def test_a_clock_that_was_set_back_keeps_nobody_waiting_longer():
    over = Sightings().ends("a", node(90_000), TTL, reference(8_000, 100.0), at=100.0)
    assert over == 110.0


def test_what_was_seen_is_not_remembered_without_end():
    seen = Sightings()
    for number in range(20_000):
        seen.ends(f"n{number}", node(1_000), TTL, None, at=100.0)
    assert len(seen._seen) <= 10_001


def test_an_age_is_never_negative():
    assert reference(8_000, 100.0).age_at(100.0, node(9_000)) == 0.0


def test_whoever_looks_calls_it_free_when_it_can_be_taken_and_not_before():
    by, held = reference(9_000, 100.0), node(1_000)
    over = Sightings().ends("a", held, TTL, by, at=100.0)
    assert by.age_at(over - 0.0005, held) < TTL / 1000 < by.age_at(over + 0.0005, held)

"""What is asked, where the moment between two requests matters."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fencing.locks.zookeeper import acquiring
from fencing.locks.zookeeper.asking import (
    Ask,
    Call,
    Check,
    Create,
    Delete,
    Multi,
    Refused,
    Reply,
    Wait,
)
from fencing.locks.zookeeper.judging import Sightings
from fencing.locks.zookeeper.names import Content, Space
from fencing.locks.zookeeper.tokens import lift
from fencing.request import AcquireRequest

SPACE = Space("n")
HOLDER = "a" * 32
OTHER = "b" * 32


def stat(
    czxid: int, *, mtime: int = 0, ephemeral: int = 0, version: int = 0, pzxid: int = 0
) -> Any:
    return SimpleNamespace(
        czxid=czxid, mzxid=czxid, ctime=mtime, mtime=mtime, version=version,
        ephemeralOwner=ephemeral, pzxid=pzxid,
    )  # fmt: skip


def ended(steps: Any, sent: Any) -> Any:
    with pytest.raises(StopIteration) as end:
        steps.send(sent)
    return end.value.value


def test_an_offset_is_raised_only_together_with_a_look_at_the_holder_s_node() -> None:
    """It may have been removed since it was read."""
    steps = lift(Call(SPACE, "r", 0.0, ends=10.0), "/n/locks/r/x", 100)
    steps.send(None)
    step = steps.send(Reply([(b"1 30 x", stat(7)), Refused("no node")], 0.0, 0.1))
    [multi] = step.operations
    assert multi.operations == (Check("/n/locks/r/x"), Create("/n/offsets/r", b"94"))
    assert ended(steps, Reply([Refused("no node", at=0)], 0.1, 0.2)) is None


def test_what_another_has_written_in_between_counts() -> None:
    steps = lift(Call(SPACE, "r", 0.0, ends=10.0), "/n/locks/r/x", 100)
    steps.send(None)
    steps.send(Reply([(b"1 30 x", stat(7)), (b"3", stat(5, version=4))], 0.0, 0.1))
    step = steps.send(Reply([Refused("version", at=1)], 0.1, 0.2))
    assert not isinstance(step.operations[0], Multi)  # it reads again
    assert ended(steps, Reply([(b"1 30 x", stat(7)), (b"200", stat(5))], 0.2, 0.3)) == 207


def acquisition(**asked: Any) -> Any:
    request = AcquireRequest(resource="r", ttl=30, **asked)
    return acquiring.acquire(
        request, holder=HOLDER, started_at=0.0, space=SPACE, sightings=Sightings()
    )


def behind_another(steps: Any) -> Ask:
    """It asks, and finds one before it; return what it does then."""
    steps.send(None)
    mine, other = f"{HOLDER}-0000000002", f"{OTHER}-0000000001"
    made = f"/n/locks/r/{mine}", stat(9, mtime=1000)
    return steps.send(
        Reply([made, ([mine, other], stat(2, pzxid=9)), Refused("no node")], 0.0, 0.1)
    )


def test_a_node_that_changes_its_kind_changes_its_name() -> None:
    """Whoever has found the old one's time over removes that, and nothing else."""
    step = behind_another(acquisition())
    removed, made = step.operations[0].operations
    assert removed == Delete(f"/n/locks/r/{HOLDER}-0000000002")
    assert made.ephemeral
    assert made.path == f"/n/locks/r/{HOLDER}-0000000002.1"


def test_a_node_whose_time_is_over_is_removed_as_it_was_seen() -> None:
    """A renewal in between is another version."""
    steps = acquisition()
    behind_another(steps)
    before = Content(5_000, "x").encoded(), stat(3, mtime=500, version=4)
    wait = steps.send(Reply([True, (b"", stat(9, mtime=1000, ephemeral=1)), before], 0.1, 0.2))
    assert isinstance(wait, Wait)
    assert 4.5 < wait.seconds < 4.51  # of 5 s, half a second was over
    step = steps.send(0.2 + wait.seconds)
    assert step.operations == (Delete(f"/n/locks/r/{OTHER}-0000000001", 4),)


def test_trust_counts_from_the_request_that_made_the_node_persistent() -> None:
    steps = acquisition(fair=True)
    steps.send(None)
    mine = f"{HOLDER}-0000000002"
    made = f"/n/locks/r/{mine}", stat(9, ephemeral=1)
    step = steps.send(Reply([made, ([mine], stat(2, pzxid=9)), Refused("no node")], 0.0, 0.1))
    assert not step.operations[0].operations[1].ephemeral
    got = b"", stat(12)
    grant = ended(steps, Reply([True, got, Refused("no node")], 7.0, 7.1))
    assert (grant.token, grant.asked_at) == (12, 7.0)
    assert grant.place.path == f"/n/locks/r/{mine}.1"

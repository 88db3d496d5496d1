"""How often, and for how long, a server is asked that refuses everything; without any server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fencing import LockServiceError
from fencing.locks.asking import ATTEMPTS, TROUBLE_SECONDS, Pause, Trouble
from fencing.locks.etcd import acquiring as of_etcd
from fencing.locks.etcd.keys import Keys
from fencing.locks.postgres import acquiring as of_postgres
from fencing.locks.redlock import acquiring as of_redlock
from fencing.locks.redlock.asking import Quorum, Replies
from fencing.locks.zookeeper import acquiring as of_zookeeper
from fencing.locks.zookeeper.asking import Sweep
from fencing.locks.zookeeper.judging import Sightings
from fencing.locks.zookeeper.names import Space
from fencing.request import AcquireRequest

if TYPE_CHECKING:
    from collections.abc import Generator

HOLDER = "ab" * 16


def acquisition(service: str, request: AcquireRequest) -> Generator[Any, Any, Any]:
    match service:
        case "etcd":
            return of_etcd.acquire(Keys("ns"), request, holder=HOLDER, started_at=0.0)
        case "zookeeper":
            space, sightings = Space("ns"), Sightings()
            return of_zookeeper.acquire(
                request, holder=HOLDER, started_at=0.0, space=space, sightings=sightings
            )
        case "redlock":
            quorum = Quorum(3, 0.25)
            return of_redlock.acquire(request, holder=HOLDER, quorum=quorum, started_at=0.0)
        case _:
            return of_postgres.acquire(request, holder=HOLDER, started_at=0.0, guarded=False)


def attempts(service: str, patience: float) -> tuple[int, float]:
    """How often it is asked, clean-ups aside, and when for the last time."""
    request = AcquireRequest(
        resource="r", ttl=60.0, blocking=patience > 0, blocking_timeout=patience or None
    )
    steps = acquisition(service, request)
    count, at, ended = 0, 0.0, 0.0
    step = next(steps)
    try:
        while True:
            if isinstance(step, Pause):
                at += step.seconds
                step = steps.send(at)
            elif isinstance(step, Sweep):
                step = steps.send(at)
            elif getattr(step, "wanted", step) is None:  # nodes that are told, whatever comes of it
                step = steps.send(Replies([None] * 3, at, at))
            else:
                if not getattr(step, "see_through", False):
                    count, ended = count + 1, at
                step = steps.throw(Trouble("refused", passing=True, at=at))
    except LockServiceError:
        return count, ended


pytestmark = pytest.mark.parametrize("service", ["etcd", "zookeeper", "redlock", "postgres"])


def test_who_does_not_wait_asks_so_many_times(service: str) -> None:
    count, _ = attempts(service, 0.0)
    assert count == ATTEMPTS


def test_who_waits_asks_for_as_long_as_another_server_may_take(service: str) -> None:
    count, ended = attempts(service, 30.0)
    assert count > ATTEMPTS
    assert ended > TROUBLE_SECONDS - 1.0

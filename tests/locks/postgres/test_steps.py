"""What is asked of PostgreSQL, without any: how long one who waits goes on asking."""

from __future__ import annotations

from fencing import LockServiceError
from fencing.locks.asking import ATTEMPTS, TROUBLE_SECONDS, Pause, Trouble
from fencing.locks.postgres.acquiring import acquire
from fencing.locks.postgres.asking import Ask
from fencing.request import AcquireRequest


def attempts(patience: float) -> tuple[int, float]:
    """How often, and for how long, a server is asked that refuses every connection at once."""
    blocking_timeout = patience or None
    request = AcquireRequest(
        resource="r", ttl=60.0, blocking=patience > 0, blocking_timeout=blocking_timeout
    )
    steps = acquire(request, holder="h", started_at=0.0, guarded=False)
    count, at, ended = 0, 0.0, 0.0
    step = next(steps)
    try:
        while True:
            if isinstance(step, Ask):
                if not step.see_through:  # no clean-up
                    count, ended = count + 1, at
                step = steps.throw(Trouble("refused", passing=not step.see_through, at=at))
            else:
                assert isinstance(step, Pause)
                at += step.seconds
                step = steps.send(at)
    except LockServiceError:
        return count, ended


def test_who_does_not_wait_asks_so_many_times() -> None:
    count, _ = attempts(0.0)
    assert count == ATTEMPTS


def test_who_waits_asks_for_as_long_as_another_server_may_take() -> None:
    count, ended = attempts(30.0)
    assert count > ATTEMPTS
    assert ended > TROUBLE_SECONDS - 1.0

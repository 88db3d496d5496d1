"""Tokens under crashes: 10,000 acquisitions, 8 processes, kills in between."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from typing import TYPE_CHECKING

import redis

from fencing.errors import LeaseLostError, LockServiceError
from fencing.locks.redis import RedisLockService
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from tests.support.child import Parent

PROCESSES = 8
ACQUISITIONS = 10_000
KILLS = 30
RESOURCES = ["a", "b", "c"]


def acquire_over_and_over(url: str, namespace: str) -> None:
    """Acquire one resource after the other, and hold every token against the tokens so far.

    A token must be greater than each that was on record *before it was asked for*. (Not than each
    on record when it is written down: a process that is stopped in between writes late, and has
    done nothing wrong.)
    """
    record = redis.Redis.from_url(url, decode_responses=True)
    locks = RedisLockService.from_url(url, namespace=namespace)
    chosen = random.Random(os.getpid())
    resource, highest, total = chosen.choice(RESOURCES), [], 0
    while total < ACQUISITIONS:
        try:
            lease = locks.acquire(resource, ttl=0.3, blocking_timeout=10)
        except LockServiceError:
            continue  # granted too late, three times in a row: a busy machine
        upcoming = chosen.choice(RESOURCES)
        new, total, following = (
            record.pipeline(transaction=False)
            .zadd(f"{namespace}:tokens:{resource}", {str(lease.token): lease.token})
            .incr(f"{namespace}:acquisitions")
            .zrange(f"{namespace}:tokens:{upcoming}", -1, -1, withscores=True)
            .execute()
        )
        if new != 1 or (highest and lease.token <= highest[0][1]):
            record.rpush(f"{namespace}:faults", f"{resource} {lease.token} {new} {highest}")
        if total % (ACQUISITIONS // (KILLS + 1)) == 0:
            record.rpush(f"{namespace}:time to kill", total)
        with contextlib.suppress(LeaseLostError):
            lease.release()  # may be late, on a machine that is busy
        resource, highest = upcoming, following


def keep_a_crowd(parent: Parent, url: str, namespace: str) -> None:
    """Run the processes; whenever it is time, kill one and start another in its place.

    They are forked here, from a process with nothing but one thread: starting each from nothing
    would take most of the test's time.
    """

    def start() -> int:
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                acquire_over_and_over(url, namespace)
                os._exit(0)
            os._exit(1)
        return pid

    record = redis.Redis.from_url(url)
    crowd = [start() for _ in range(PROCESSES)]
    killed = 0
    while killed < KILLS and record.blpop(f"{namespace}:time to kill", timeout=30):
        victim = random.randrange(PROCESSES)
        os.kill(crowd[victim], signal.SIGKILL)
        killed += os.WIFSIGNALED(os.waitpid(crowd[victim], 0)[1])
        crowd[victim] = start()
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in crowd]
    parent.report("done", killed=killed, statuses=statuses)


def test_tokens_strictly_increase_and_none_repeats(
    redis_url: str, redis_client: redis.Redis, redis_namespace: str
) -> None:
    with ChildProcess(keep_a_crowd, redis_url, redis_namespace) as crowd:
        done = crowd.wait_for("done", timeout=100)
        crowd.check()
    assert done["statuses"] == [0] * PROCESSES
    assert done["killed"] >= KILLS - PROCESSES  # the last ones may have been done before
    assert redis_client.lrange(f"{redis_namespace}:faults", 0, -1) == []
    recorded = [redis_client.zcard(f"{redis_namespace}:tokens:{name}") for name in RESOURCES]
    assert sum(recorded) >= ACQUISITIONS
    assert all(count > ACQUISITIONS / 10 for count in recorded)

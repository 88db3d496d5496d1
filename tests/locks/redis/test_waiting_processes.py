"""Waiting across processes that are real, and are stopped, killed and interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from fencing.clock import now
from fencing.errors import LeaseLostError, LockNotAcquiredError, LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.scripts import keys_of
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis

    from tests.support.child import Parent


def wait_for_it(parent: Parent, url: str, namespace: str, wishes: dict[str, Any]) -> None:
    with RedisLockService.from_url(url, namespace=namespace) as locks:
        with locks.acquire("r", ttl=60, **wishes) as lease:
            parent.report("acquired", token=lease.token)
            parent.wait_for("release")
        parent.report("released")


async def wait_for_it_async(
    parent: Parent, url: str, namespace: str, wishes: dict[str, Any]
) -> None:
    async with AsyncRedisLockService.from_url(url, namespace=namespace) as locks:
        async with locks.acquire("r", ttl=60, **wishes) as lease:
            parent.report("acquired", token=lease.token)
            await asyncio.to_thread(parent.wait_for, "release")
        parent.report("released")


class Waiting:
    """Processes that wait for one lock, begun one after the other."""

    def __init__(self, client: redis.Redis, url: str, namespace: str) -> None:
        self.client = client
        self.keys = keys_of(namespace, "r")
        self.arguments = (url, namespace)
        self.locks = RedisLockService.from_url(url, namespace=namespace)
        self.stack = contextlib.ExitStack()

    def begin(self, function: Any = wait_for_it, **wishes: Any) -> ChildProcess:
        before = self.queued()
        child = self.stack.enter_context(ChildProcess(function, *self.arguments, wishes))
        until(lambda: self.queued() == before + 1)
        return child

    def queued(self) -> int:
        return self.client.zcard(self.keys[2])

    def leftovers(self) -> int:
        return self.client.exists(self.keys[0], self.keys[2])


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so that nobody tells of."""
    give_up = now() + 30
    while not condition():
        assert now() < give_up
        time.sleep(0.002)


@pytest.fixture
def waiting(redis_client: redis.Redis, redis_url: str, redis_namespace: str) -> Iterator[Waiting]:
    waiting = Waiting(redis_client, redis_url, redis_namespace)
    with waiting.stack, waiting.locks:
        yield waiting


@pytest.mark.parametrize("function", [wait_for_it, wait_for_it_async])
@pytest.mark.parametrize("fair", [False, True])
def test_the_longest_waiting_process_is_next(
    waiting: Waiting, function: Any, *, fair: bool
) -> None:
    held = waiting.locks.acquire("r", ttl=60)
    children = [waiting.begin(function, fair=fair) for _ in range(3)]
    held.release()
    for token, child in enumerate(children, 2):
        assert child.wait_for("acquired")["token"] == token
        child.tell("release")
    for child in children:
        child.wait_for("released")
        child.check()
    assert waiting.leftovers() == 0


def test_a_killed_waiter_is_passed_over_at_once(waiting: Waiting) -> None:
    held = waiting.locks.acquire("r", ttl=60)
    killed = [waiting.begin(fair=True) for _ in range(2)]
    alive = waiting.begin(fair=True)
    for child in killed:
        child.kill()
    held.release()
    # The counter tells: nobody was handed the lock in between.
    assert alive.wait_for("acquired")["token"] == 2
    alive.tell("release")
    alive.check()


def test_a_stopped_waiter_delays_the_others_by_two_seconds(waiting: Waiting) -> None:
    held = waiting.locks.acquire("r", ttl=60)
    stopped, alive = (waiting.begin(fair=True) for _ in range(2))
    stopped.suspend()
    started_at = now()
    held.release()
    assert alive.wait_for("acquired")["token"] == 3
    # The lock that was handed to the stopped one had a ttl of 60 s to be asked for.
    assert now() - started_at > 1.5
    alive.tell("release")
    alive.wait_for("released")
    stopped.resume()
    assert stopped.wait_for("acquired")["token"] == 4
    stopped.tell("release")
    for child in (stopped, alive):
        child.check()


def test_who_stopped_after_it_was_handed_the_lock_does_not_believe_in_it(waiting: Waiting) -> None:
    held = waiting.locks.acquire("r", ttl=60)
    stopped = waiting.begin()
    stopped.suspend()
    held.release()
    until(lambda: not waiting.client.exists(waiting.keys[0]))
    successor = waiting.locks.acquire("r", ttl=60)
    stopped.resume()
    until(lambda: waiting.queued() == 1)  # it has asked again, and waits
    successor.release()
    assert stopped.wait_for("acquired")["token"] == successor.token + 1
    stopped.tell("release")
    stopped.check()


def be_interrupted(parent: Parent, url: str, namespace: str, wishes: dict[str, Any]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with RedisLockService.from_url(url, namespace=namespace) as locks:
        try:
            locks.acquire("r", ttl=60, **wishes)
        except KeyboardInterrupt:
            parent.report("interrupted")


def test_an_interrupted_waiter_leaves_nothing(waiting: Waiting) -> None:
    held = waiting.locks.acquire("r", ttl=60)
    children = [waiting.begin(be_interrupted, fair=fair) for fair in (False, True) * 2]
    for child in children:
        child.send_signal(signal.SIGINT)
        child.wait_for("interrupted")
        child.check()
    assert waiting.queued() == 0
    held.release()
    assert waiting.leftovers() == 0


def hold_now_and_then(parent: Parent, url: str, namespace: str, seed: int) -> None:
    rng = random.Random(seed)
    intervals = []
    with RedisLockService.from_url(url, namespace=namespace) as locks:
        parent.report("ready")
        parent.wait_for("go")
        end = now() + 8
        while now() < end:
            wishes = {
                "ttl": rng.choice([0.05, 0.3, 1.0, 5.0]),
                "fair": rng.random() < 0.5,
                "blocking_timeout": rng.choice([0.02, 0.5, 5.0]),
            }
            with contextlib.suppress(LockNotAcquiredError, LockServiceError):  # stopped too long
                lease = locks.acquire("r", **wishes)
                began_at = now()
                time.sleep(rng.uniform(0, 0.01))
                if rng.random() < 0.2:
                    lease.wait_lost(0.4)
                ended_at = min(now(), lease.trusted_until)
                if not lease.expired:
                    with contextlib.suppress(LeaseLostError):  # stopped since that look
                        lease.release()
                if began_at < ended_at:
                    intervals.append((lease.token, began_at, ended_at))
    parent.report("done", intervals=intervals)


@pytest.mark.parametrize("disturbed", [False, True])
def test_no_two_processes_trust_their_leases_at_once(waiting: Waiting, *, disturbed: bool) -> None:
    children = [
        waiting.stack.enter_context(ChildProcess(hold_now_and_then, *waiting.arguments, seed))
        for seed in range(5)
    ]
    for child in children:
        child.wait_for("ready")
    for child in children:
        child.tell("go")
    if disturbed:
        rng = random.Random(7)
        for _ in range(8):
            victim = rng.choice(children[:2])
            victim.suspend()
            time.sleep(rng.uniform(0.05, 0.5))
            victim.resume()
            waiting.client.client_kill_filter(_type="pubsub")
    intervals = sorted(
        tuple(interval)
        for child in children
        for interval in child.wait_for("done", timeout=60)["intervals"]
    )
    assert len(intervals) > 20
    tokens = [token for token, _, _ in intervals]
    assert len(set(tokens)) == len(tokens)
    for (_, _, ended_at), (_, began_at, _) in itertools.pairwise(intervals):
        assert ended_at <= began_at

"""How soon a released lock is its next holder's: from one process to another that waits for it.

::

    python -m tests.benchmarks.handoff [--redis URL] [--rounds 200]

A round is: another process waits, this one releases; measured is the time from the call of
``release`` to the return of the other's ``acquire``. Beside ours, in turn, in one run and on one
server: a bare BLPOP that is woken by an RPUSH, which is about the least that Redis can do, and
redis-py's own lock, which looks every tenth of a second. Medians, and what counts is their ratio.

Then by how much a ``blocking_timeout`` is overrun, on a lock that stays held.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio

from fencing.clock import now
from fencing.embedded import ValkeyProcess
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from tests.benchmarks.locks import in_turn, use_two_processors
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.child import Parent

WARM_UP_ROUNDS = 5
TTL = 30
PATIENCE = 0.2
NAMES = ("BLPOP", "fencing", "redis-py")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", metavar="URL", help="a server; default: one of our own")
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.redis or stack.enter_context(ValkeyProcess()).url
        control = stack.enter_context(redis.Redis.from_url(url))
        use_two_processors(control)
        for kind, waiter in (("sync", "wait"), ("asyncio", "wait_async")):
            with ChildProcess(f"tests.benchmarks.handoff:{waiter}", url) as child:
                hand_over(url, kind, child, arguments.rounds)
                child.tell("stop")
                child.check()


def hand_over(url: str, kind: str, child: ChildProcess, rounds: int) -> None:
    """Release, so that the other process gets it, again and again; and let it wait in vain."""
    with redis.Redis.from_url(url) as client, RedisLockService(client, namespace="bench") as locks:
        holders = {"BLPOP": Pushing(client), "fencing": Ours(locks), "redis-py": Theirs(client)}
        times: dict[str, list[float]] = {name: [] for name in NAMES}
        for number in range(WARM_UP_ROUNDS + rounds):
            for name in in_turn(holders, number):
                holders[name].hold()
                child.tell(name)
                child.wait_for("waits")
                # Until it waits; and at any moment between two looks of one who looks.
                time.sleep(random.uniform(0.01, 0.11))
                began = now()
                holders[name].release()
                times[name].append(child.wait_for("got")["at"] - began)
                child.wait_for("gave back")
        report(kind, times)
        for name in ("fencing", "redis-py"):
            holders[name].hold()
            overruns = []
            for _ in range(20):
                child.tell(f"{name} in vain")
                overruns.append(child.wait_for("gave up")["after"] - PATIENCE)
            holders[name].release()
            print(
                f"{kind:8} {name:9} overruns blocking_timeout={PATIENCE} by "
                f"{statistics.median(overruns) * 1e3:.1f} ms, {max(overruns) * 1e3:.1f} at most"
            )


class Pushing:
    """What wakes a BLPOP."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def hold(self) -> None:
        """Nothing: there is nothing to be popped."""

    def release(self) -> None:
        self.client.rpush("bench:list", "x")


class Ours:
    """A lease."""

    def __init__(self, locks: RedisLockService) -> None:
        self.locks = locks

    def hold(self) -> None:
        self.lease = self.locks.acquire("account:42", ttl=TTL)

    def release(self) -> None:
        self.lease.release()


class Theirs:
    """A lock of redis-py's."""

    def __init__(self, client: redis.Redis) -> None:
        self.lock = client.lock("bench:lock", timeout=TTL)

    def hold(self) -> None:
        self.lock.acquire()

    def release(self) -> None:
        self.lock.release()


def wait(parent: Parent, url: str) -> None:
    """The other process: waits as it is told."""
    with redis.Redis.from_url(url) as client, RedisLockService(client, namespace="bench") as locks:

        def take(name: str, patience: float | None) -> Callable[[], object] | None:
            if name == "BLPOP":
                client.blpop(["bench:list"], timeout=TTL)
                return lambda: None
            if name == "redis-py":
                lock = client.lock("bench:lock", timeout=TTL, blocking_timeout=patience)
                return lock.release if lock.acquire() else None
            with contextlib.suppress(TimeoutError):
                return locks.acquire("account:42", ttl=TTL, blocking_timeout=patience).release
            return None

        while (word := parent.hear()) != "stop":
            name, _, in_vain = word.partition(" ")
            began = now()
            parent.report("waits")
            give_back = take(name, PATIENCE if in_vain else None)
            at = now()
            if give_back is None:
                parent.report("gave up", after=at - began)
            else:
                parent.report("got", at=at)
                give_back()
                parent.report("gave back")


async def wait_async(parent: Parent, url: str) -> None:
    """The same in asyncio."""
    async with (
        redis.asyncio.Redis.from_url(url) as client,
        AsyncRedisLockService(client, namespace="bench") as locks,
    ):

        async def take(name: str, patience: float | None) -> Callable[[], Awaitable[Any]] | None:
            if name == "BLPOP":
                await client.blpop(["bench:list"], timeout=TTL)
                return lambda: asyncio.sleep(0)
            if name == "redis-py":
                lock = client.lock("bench:lock", timeout=TTL, blocking_timeout=patience)
                return lock.release if await lock.acquire() else None
            with contextlib.suppress(TimeoutError):
                lease = await locks.acquire("account:42", ttl=TTL, blocking_timeout=patience)
                return lease.release
            return None

        while (word := await asyncio.to_thread(parent.hear)) != "stop":
            name, _, in_vain = word.partition(" ")
            began = now()
            parent.report("waits")
            give_back = await take(name, PATIENCE if in_vain else None)
            at = now()
            if give_back is None:
                parent.report("gave up", after=at - began)
            else:
                parent.report("got", at=at)
                await give_back()
                parent.report("gave back")


def report(kind: str, times: dict[str, list[float]]) -> None:
    taken = {name: sorted(each[WARM_UP_ROUNDS:]) for name, each in times.items()}
    medians = {name: statistics.median(each) for name, each in taken.items()}
    for name, median in medians.items():
        slow = taken[name][int(0.95 * len(taken[name]))]
        print(
            f"{kind:8} {name:9} {median * 1e3:8.3f} ms  (95 %: {slow * 1e3:8.3f})  "
            f"{median / medians['BLPOP']:6.2f} times BLPOP  "
            f"{medians['redis-py'] / median:6.1f} times as fast as redis-py"
        )


if __name__ == "__main__":
    main()

"""What an uncontended lock costs: pairs of acquire and release, beside other locks for Redis.

::

    python -m tests.benchmarks.locks [--redis URL] [--rounds 40]

All locks are on one server and take turns, in one run; figures are medians of the rounds, and what
counts is their ratio. Each lock is used in its own words. The *floor* is our two scripts alone,
run by redis-py's plain client: what a lock with fencing tokens costs with nothing around it.
python-redis-lock is measured where it is installed.

Client and server are kept on two processors where there are two: whether the kernel happens to
put them on one makes more difference than anything measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import time
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import redis
import redis.asyncio

from fencing.embedded import ValkeyProcess
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from fencing.locks.redis.direct import Direct

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

K = TypeVar("K")

WARM_UP_ROUNDS = 3
PAIRS = 100
TTL = 30


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", metavar="URL", help="a server; default: one of our own")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        url = arguments.redis or stack.enter_context(ValkeyProcess()).url
        control = stack.enter_context(redis.Redis.from_url(url))
        use_two_processors(control)
        uncontended(url, control, arguments.rounds)
        asyncio.run(async_uncontended(url, control, arguments.rounds))


def use_two_processors(control: redis.Redis) -> None:
    if not hasattr(os, "sched_setaffinity") or (os.cpu_count() or 1) < 2:
        return
    os.sched_setaffinity(0, {0})
    with contextlib.suppress(OSError):  # a server elsewhere, or of another user
        os.sched_setaffinity(control.info("server")["process_id"], {1})


def uncontended(url: str, control: redis.Redis, rounds: int) -> None:
    """Pairs of one thread on a lock that nobody else wants."""
    with redis.Redis.from_url(url) as client, RedisLockService(client, namespace="bench") as locks:
        work = sync_pairs(client, locks)
        times: dict[str, list[float]] = {name: [] for name in work}
        for number in range(WARM_UP_ROUNDS + rounds):
            for name in in_turn(work, number):
                began = time.perf_counter()
                for _ in range(PAIRS):
                    work[name]()
                times[name].append(time.perf_counter() - began)
        trips = {}
        for name, pair in work.items():
            before = reads_so_far(control)
            pair()
            trips[name] = reads_so_far(control) - before - 1
    report("sync", times, trips)


def sync_pairs(client: redis.Redis, locks: RedisLockService) -> dict[str, Callable[[], None]]:
    acquire, release = requests_of_a_pair(client)

    def theirs() -> None:
        with client.lock("lock:account:42", timeout=TTL):
            pass

    def ours() -> None:
        with locks.acquire("account:42", ttl=TTL):
            pass

    def floor() -> None:
        client.evalsha(*acquire)
        client.evalsha(*release)

    pairs: dict[str, Callable[[], None]] = {"redis-py": theirs, "fencing": ours, "floor": floor}
    try:
        import redis_lock
    except ImportError:
        print("python-redis-lock is not installed, and left out: pip install python-redis-lock")
        return pairs

    def python_redis_lock() -> None:
        with redis_lock.Lock(client, "account:42", expire=TTL):
            pass

    return {**pairs, "python-redis-lock": python_redis_lock}


async def async_uncontended(url: str, control: redis.Redis, rounds: int) -> None:
    """Pairs of one task on a lock that nobody else wants."""
    async with (
        redis.asyncio.Redis.from_url(url) as client,
        AsyncRedisLockService(client, namespace="bench") as locks,
    ):
        work = async_pairs(client, locks, requests_of_a_pair(control))
        times: dict[str, list[float]] = {name: [] for name in work}
        for number in range(WARM_UP_ROUNDS + rounds):
            for name in in_turn(work, number):
                began = time.perf_counter()
                for _ in range(PAIRS):
                    await work[name]()
                times[name].append(time.perf_counter() - began)
        trips = {}
        for name, pair in work.items():
            before = reads_so_far(control)
            await pair()
            trips[name] = reads_so_far(control) - before - 1
    report("asyncio", times, trips)


def async_pairs(
    client: redis.asyncio.Redis, locks: AsyncRedisLockService, requests: list[Any]
) -> dict[str, Callable[[], Awaitable[None]]]:
    acquire, release = requests

    async def theirs() -> None:
        async with client.lock("lock:account:42", timeout=TTL):
            pass

    async def ours() -> None:
        async with locks.acquire("account:42", ttl=TTL):
            pass

    async def floor() -> None:
        await client.evalsha(*acquire)
        await client.evalsha(*release)

    return {"redis-py": theirs, "fencing": ours, "floor": floor}


def requests_of_a_pair(client: redis.Redis) -> list[Any]:
    """What EVALSHA is given for an acquire and for its release."""
    requests: list[Any] = []
    run = Direct.run

    def noted(self: Direct, script: Any, keys: Any, args: Any, end: float) -> Any:
        requests.append((script.sha, len(keys), *keys, *args))
        return run(self, script, keys, args, end)

    with (
        mock.patch.object(Direct, "run", noted),
        RedisLockService(client, namespace="bench-floor") as locks,
    ):
        locks.acquire("account:42", ttl=TTL).release()
    return requests


def in_turn(work: dict[K, Any], number: int) -> list[K]:
    names = list(work)
    return names[number % len(names) :] + names[: number % len(names)]


def reads_so_far(control: redis.Redis) -> int:
    """How often the server has read from a client: once for a request that fits into a packet.

    Its commands would not do: those within scripts count, too.
    """
    return int(control.info("stats")["total_reads_processed"])


def report(kind: str, times: dict[str, list[float]], trips: dict[str, int]) -> None:
    medians = {
        name: statistics.median(taken[WARM_UP_ROUNDS:]) / PAIRS for name, taken in times.items()
    }
    for name, median in medians.items():
        print(
            f"{kind:8} {name:18} {1 / median:8.0f} pairs/s  {median * 1e6:6.0f} us  "
            f"{medians['redis-py'] / median:5.2f} of redis-py  "
            f"{medians['floor'] / median:5.2f} of the floor  {trips[name]} round trips"
        )


if __name__ == "__main__":
    main()

"""What it costs to keep many leases alive: processor time of one process, as a part of one core.

::

    python -m tests.benchmarks.keepalive [leases] [ttl in seconds]

Starts a Valkey of its own. Measured are a full ttl and a third after all leases were acquired, so
that every lease is renewed four times; none may be lost.
"""

from __future__ import annotations

import asyncio
import sys
import time

from fencing import AsyncRedisLockService, RedisLockService, embedded


def report(kind: str, leases: int, ttl: float, used: float, took: float) -> None:
    """Print a line."""
    print(
        f"{kind:6} {leases} leases, ttl {ttl:g} s: {100 * used / took:.1f} % of one core "
        f"({1e6 * used / (took * leases / (ttl / 3)):.0f} µs for each renewal)"
    )


def keep(url: str, leases: int, ttl: float) -> None:
    """In threads."""
    with RedisLockService.from_url(url, namespace="sync") as locks:
        kept = [locks.acquire(f"r{n}", ttl=ttl, keepalive=True) for n in range(leases)]
        began, used = time.perf_counter(), time.process_time()
        time.sleep(ttl * 4 / 3)
        used, took = time.process_time() - used, time.perf_counter() - began
        assert not any(lease.lost for lease in kept)
    report("sync", leases, ttl, used, took)


async def keep_async(url: str, leases: int, ttl: float) -> None:
    """In an event loop."""
    async with AsyncRedisLockService.from_url(url, namespace="async") as locks:
        kept = [await locks.acquire(f"r{n}", ttl=ttl, keepalive=True) for n in range(leases)]
        began, used = time.perf_counter(), time.process_time()
        await asyncio.sleep(ttl * 4 / 3)
        used, took = time.process_time() - used, time.perf_counter() - began
        assert not any(lease.lost for lease in kept)
    report("async", leases, ttl, used, took)


def main() -> None:
    """Measure both."""
    leases = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    ttl = float(sys.argv[2]) if len(sys.argv) > 2 else 30.0
    servers = embedded.start()
    try:
        keep(servers.redis_url, leases, ttl)
        asyncio.run(keep_async(servers.redis_url, leases, ttl))
    finally:
        servers.stop()


if __name__ == "__main__":
    main()

"""Acquire and release through a Guard: over the lock service in its own database, and over Redis.

::

    python -m tests.benchmarks.postgres_locks [--postgres URL --redis URL] [--seconds 10]

One process, nobody else wants the lock, no work is done under it. The two take turns in slices of
a fifth of a second, so that what else the machine does meets both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from sqlalchemy import create_engine

from fencing import Guard, PostgresLockService, RedisLockService, embedded
from fencing.migration import install

if TYPE_CHECKING:
    from collections.abc import Callable

SLICE = 0.2
"""How long one is measured before it is the other's turn, in seconds."""


def main() -> None:
    """Measure, and print medians over the slices."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", help="default: an embedded one")
    parser.add_argument("--redis", help="default: an embedded one")
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    with ExitStack() as stack:
        if options.postgres is None or options.redis is None:
            servers = stack.enter_context(embedded.start())
            options.postgres, options.redis = servers.database_url, servers.redis_url
        install(options.postgres)
        engine = create_engine(options.postgres)
        stack.callback(engine.dispose)
        services = {
            "Guard over PostgreSQL": PostgresLockService(options.postgres),
            "Guard over Redis": RedisLockService.from_url(options.redis),
        }
        guards = {
            name: stack.enter_context(Guard(locks, engine)) for name, locks in services.items()
        }
        alone = stack.enter_context(PostgresLockService(options.postgres))
        measured: dict[str, Callable[[int], None]] = {
            **{name: _pairs(guard.acquire) for name, guard in guards.items()},
            "PostgreSQL without a guard": _pairs(alone.acquire),
        }
        rates = _measure(measured, options.seconds)
    for name, each in rates.items():
        rate = statistics.median(each)
        print(f"{name:28} {rate:8.0f} pairs/s   {1e6 / rate:6.0f} µs a pair")


def _pairs(acquire: Callable[..., object]) -> Callable[[int], None]:
    def pair(number: int) -> None:
        acquire(f"account:{number % 100}", ttl=10).release()  # type: ignore[attr-defined] # a lease

    return pair


def _measure(measured: dict[str, Callable[[int], None]], seconds: float) -> dict[str, list[float]]:
    rates: dict[str, list[float]] = {name: [] for name in measured}
    for pair in measured.values():
        for number in range(200):
            pair(number)
    for _ in range(int(seconds / SLICE / len(measured)) + 1):
        for name, pair in measured.items():
            began, count = time.perf_counter(), 0
            while (passed := time.perf_counter() - began) < SLICE:
                pair(count)
                count += 1
            rates[name].append(count / passed)
    return rates


if __name__ == "__main__":
    main()

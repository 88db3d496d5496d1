"""What each lock service costs: a lock that nobody else wants, a guarded one, and a hand-over.

::

    python -m tests.benchmarks.services [--rounds 40]

All servers are on this machine, and the services take turns, in one run: figures are medians, and
what counts is how they compare. A *pair* is an acquisition and its release; a *guarded* pair has
the admission in PostgreSQL in between; a *hand-over* is the time from one process's call of
``release`` to the return of another's ``acquire`` that has waited. *Trips* are how often a pair
waits for a server's answer; for those of several nodes at once, once.

Client and servers are left to the scheduler: some have several processes and threads.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import create_engine

from fencing import Guard, connect
from fencing.clock import now
from fencing.embedded import PostgresProcess, ValkeyProcess
from fencing.embedded.etcd import EtcdProcess
from fencing.embedded.proxy import TcpProxy
from fencing.embedded.zookeeper import ZooKeeperProcess
from fencing.migration import install
from tests.benchmarks.locks import in_turn
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing import LockService
    from tests.support.child import Parent

WARM_UP_ROUNDS = 3
PAIRS = 20
TTL = 30
RESOURCE = "account:42"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    with contextlib.ExitStack() as stack:
        postgres = stack.enter_context(PostgresProcess({"fsync": "on"}))
        install(postgres.url)
        urls = {
            "PostgreSQL": postgres.url,
            "Redis": stack.enter_context(ValkeyProcess()).url,
            "Redlock, 3 nodes": "redlock://"
            + ",".join(f"127.0.0.1:{stack.enter_context(ValkeyProcess()).port}" for _ in range(3)),
            "etcd": stack.enter_context(EtcdProcess()).url,
            "ZooKeeper": stack.enter_context(ZooKeeperProcess()).url,
        }
        each = {name: stack.enter_context(connect(url)) for name, url in urls.items()}
        engine = create_engine(postgres.url)
        stack.callback(engine.dispose)
        guards = {name: stack.enter_context(Guard(locks, engine)) for name, locks in each.items()}
        work = {(name, False): pair_of(locks) for name, locks in each.items()}
        work |= {(name, True): pair_of(guard) for name, guard in guards.items()}
        pairs = measured(work, rounds)
        handed = handed_over(each, urls, rounds)
        trips = {name: trips_of_a_pair(url) for name, url in urls.items()}
    print(f"{'':18} {'pair':>9} {'guarded':>9} {'hand-over':>9} {'trips':>9}   (ms)")
    for name in each:
        figures = (pairs[name, False], pairs[name, True], handed[name])
        times = " ".join(f"{figure * 1e3:9.2f}" for figure in figures)
        print(f"{name:18} {times} {trips[name]:9}")


class Uncounted:
    """A protocol whose requests are not told apart."""

    def feed(self, _data: bytes) -> tuple[()]:
        return ()


def trips_of_a_pair(url: str) -> int:
    """How often a pair waits for an answer; of several nodes, the one that is asked most often."""
    scheme, _, rest = url.partition("://")
    user, at, rest = rest.rpartition("@")
    hosts, slash, path = rest.partition("/")
    with contextlib.ExitStack() as stack:
        proxies = []
        for address in hosts.split(","):
            host, _, port = address.rpartition(":")
            proxies.append(stack.enter_context(TcpProxy(url, host, int(port), Uncounted)))
        ports = ",".join(f"127.0.0.1:{proxy.port}" for proxy in proxies)
        locks = stack.enter_context(connect(f"{scheme}://{user}{at}{ports}{slash}{path}"))
        pair = pair_of(locks)
        for _ in range(PAIRS):  # connected, and what is prepared at first is prepared
            pair()
        before = [proxy.turns for proxy in proxies]
        for _ in range(PAIRS):
            pair()
        each = zip(proxies, before, strict=True)
        return max(round((proxy.turns - so_far) / PAIRS) for proxy, so_far in each)


def pair_of(locks: LockService | Guard) -> Callable[[], None]:
    """Acquire and release."""

    def pair() -> None:
        locks.acquire(RESOURCE, ttl=TTL).release()

    return pair


def measured(
    work: dict[tuple[str, bool], Callable[[], None]], rounds: int
) -> dict[tuple[str, bool], float]:
    """How long each takes, in seconds: the medians of the rounds."""
    times: dict[tuple[str, bool], list[float]] = {name: [] for name in work}
    for number in range(WARM_UP_ROUNDS + rounds):
        for name in in_turn(work, number):
            began = time.perf_counter()
            for _ in range(PAIRS):
                work[name]()
            times[name].append((time.perf_counter() - began) / PAIRS)
    return {name: statistics.median(each[WARM_UP_ROUNDS:]) for name, each in times.items()}


def handed_over(
    each: dict[str, LockService], urls: dict[str, str], rounds: int
) -> dict[str, float]:
    """How long it takes from one process to another that waits, in seconds: the medians."""
    times: dict[str, list[float]] = {name: [] for name in each}
    with ChildProcess("tests.benchmarks.services:wait", urls) as child:
        for number in range(WARM_UP_ROUNDS + rounds):
            for name in in_turn(each, number):
                lease = each[name].acquire(RESOURCE, ttl=TTL)
                child.tell(name)
                child.wait_for("waits")
                time.sleep(random.uniform(0.05, 0.1))  # until it does
                began = now()
                lease.release()
                times[name].append(child.wait_for("got")["at"] - began)
                child.wait_for("gave back")
        child.tell("stop")
        child.check()
    return {name: statistics.median(some[WARM_UP_ROUNDS:]) for name, some in times.items()}


def wait(parent: Parent, urls: dict[str, Any]) -> None:
    """The other process: waits as it is told."""
    with contextlib.ExitStack() as stack:
        each = {name: stack.enter_context(connect(url)) for name, url in urls.items()}
        while (name := parent.hear()) != "stop":
            parent.report("waits")
            lease = each[name].acquire(RESOURCE, ttl=TTL)
            parent.report("got", at=now())
            lease.release()
            parent.report("gave back")


if __name__ == "__main__":
    main()

"""What many fences cost: on disk, in the latency of an admission, and in the time to prune them.

::

    python tests/benchmarks/retention.py [--fences 10000000] [--postgres /usr/lib/postgresql/15/bin]

Two databases of one server, with ten thousand fences and with many; admissions go to the one and
the other in turn, so that whatever else the machine does meets both. Fences are made in a random
order, as they come in life, with the triggers of the fence off. Needs about 4 GB for ten million.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import random
import statistics
import threading
import time
import uuid

import psycopg

from fencing.embedded import PostgresProcess
from fencing.schema import ddl
from tests.support.databases import plain_url

FEW = 10_000
ROUNDS = 3_000
WARM_UP = 200

tokens = itertools.count(2)

KINDS = {
    "one of a hundred resources": lambda _: f"account:{random.randint(1, 100)}",
    "any resource": lambda fences: f"account:{random.randint(1, fences)}",
    "a new resource": lambda _: str(uuid.uuid4()),
}

say = functools.partial(print, flush=True)

ADMIT = "SELECT fencing.admit(%s, %s, %s, 'worker-07.example:48213:MainThread', 1000)"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fences", type=int, default=10_000_000)
    parser.add_argument("--postgres", help="folder of the server's programs")
    arguments = parser.parse_args()
    with PostgresProcess(bin_directory=arguments.postgres) as server:
        url = plain_url(server.url)
        few, many = (make(url, *each) for each in (("few", FEW), ("many", arguments.fences)))
        say(many.execute("SELECT version()").fetchone()[0])
        size(many, arguments.fences)
        latency(few, many, arguments.fences)
        prune(many, arguments.fences)


def make(url: str, name: str, fences: int) -> psycopg.Connection:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    connection = psycopg.connect(url, dbname=name, autocommit=True)
    with connection.transaction():
        for statement in ddl.install():
            connection.execute(statement)
    started = time.monotonic()
    connection.execute("ALTER TABLE fencing.fence DISABLE TRIGGER USER")
    connection.execute(
        "INSERT INTO fencing.fence (resource, token, holder, owner, admitted_at) "
        "SELECT concat('account:', n), 1, md5(CAST(n AS text)), "
        "       'worker-07.example:48213:MainThread', clock_timestamp() - interval '60 days' "
        f"FROM generate_series(1, {fences}) AS n ORDER BY hashint8(n)"
    )
    for trigger in ("fence_remember_previous", "fence_keep_rows", "fence_keep_table"):
        connection.execute(f"ALTER TABLE fencing.fence ENABLE ALWAYS TRIGGER {trigger}")
    connection.execute("VACUUM ANALYZE fencing.fence")
    connection.execute("CHECKPOINT")
    say(f"{fences} fences made in {time.monotonic() - started:.0f} s")
    return connection


def size(connection: psycopg.Connection, fences: int) -> None:
    table, index = connection.execute(
        "SELECT pg_table_size('fencing.fence'), pg_indexes_size('fencing.fence')"
    ).fetchone()
    for what, size in (("table", table), ("index", index), ("together", table + index)):
        say(f"{what:<10}{size / 2**20:8.0f} MiB  {size / fences:6.1f} bytes a fence")


def latency(few: psycopg.Connection, many: psycopg.Connection, fences: int) -> None:
    say("\nEXPLAIN of what an admission reads")
    for (line,) in many.execute(
        "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF, SUMMARY OFF) "
        "SELECT f.token, f.holder FROM fencing.fence AS f WHERE f.resource = 'account:4711'"
    ).fetchall():
        say("   ", line)
    for kind, resource in KINDS.items():
        times: dict[str, list[float]] = {"few": [], "many": []}
        both = [("few", few, FEW), ("many", many, fences)]
        for number in range(WARM_UP + ROUNDS):
            for name, connection, n in both if number % 2 else reversed(both):
                spent = admit(connection, resource(n))
                if number >= WARM_UP:
                    times[name].append(spent)
        medians = {name: statistics.median(each) for name, each in times.items()}
        say(
            f"\nadmission on {kind}: {medians['few'] * 1e6:.0f} µs among {FEW}, "
            f"{medians['many'] * 1e6:.0f} µs among {fences}: "
            f"ratio {medians['few'] / medians['many']:.2f} (medians of {ROUNDS}, in turn)"
        )


def admit(connection: psycopg.Connection, resource: str) -> float:
    """The seconds it took."""
    started = time.perf_counter()
    connection.execute(ADMIT, (resource, next(tokens), uuid.uuid4().hex))
    return time.perf_counter() - started


def prune(connection: psycopg.Connection, fences: int) -> None:
    say()
    after: str | None = ""
    for batch, beside in ((1000, False), (1000, False), (5000, False), (1000, True)):
        started, pruned, busy, done = time.monotonic(), 0, 0, threading.Event()
        admissions = threading.Thread(target=admit_new, args=(connection.info.dsn, done))
        if beside:
            admissions.start()
        for _ in range(100_000 // batch):
            row = connection.execute(
                "SELECT * FROM fencing.prune(interval '30 days', %s, %s)", (after, batch)
            ).fetchone()
            pruned, busy, after = pruned + row[0], busy + row[1], row[2]
            if after is None:
                break
        spent = time.monotonic() - started
        say(
            f"prune in batches of {batch}: {pruned} pruned, {busy} in use, {spent:.2f} s, "
            f"{spent / max(pruned, 1) * 100_000:.2f} s per 100,000"
        )
        done.set()
        if beside:
            admissions.join()
        if after is None:
            break
    started = time.monotonic()
    connection.execute("VACUUM fencing.fence")
    say(f"VACUUM afterwards: {time.monotonic() - started:.1f} s")
    size(connection, fences)


def admit_new(dsn: str, done: threading.Event) -> None:
    """Admit new resources until it is done."""
    times = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        while not done.is_set():
            times.append(admit(connection, str(uuid.uuid4())))
    times.sort()
    say(
        f"    {len(times)} admissions of new resources beside it: median "
        f"{statistics.median(times) * 1e3:.2f} ms, 99 % within "
        f"{times[len(times) * 99 // 100] * 1e3:.1f} ms, longest {times[-1] * 1e3:.1f} ms"
    )


if __name__ == "__main__":
    main()

"""How long a successor's admission waits for a holder that was stopped in an open transaction.

::

    python -m tests.benchmarks.zombies [--postgres /usr/lib/postgresql/15/bin] [--ttl 2]

The holder is stopped with SIGSTOP right after its last statement, in the middle of one, or while it
receives a large result over TCP. The clock starts when it is stopped; the successor has its lock at
once, so that only the wait for the open transaction is seen.
"""

from __future__ import annotations

import argparse
import time

import psycopg
from sqlalchemy import create_engine

from fencing import Guard
from fencing.embedded import PostgresProcess, ValkeyProcess
from fencing.migration import install
from tests.support.bank import Bank
from tests.support.databases import plain_url
from tests.support.holders import zombie
from tests.support.processes import ChildProcess
from tests.support.scripted import ScriptedLocks

KINDS = {"idle in its transaction": "commit", "busy": "busy", "receiving rows": "receiving"}
ACTIVITY = "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s AND "
PATIENCE = 60.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--postgres", help="folder of the server's programs")
    parser.add_argument("--ttl", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with PostgresProcess(bin_directory=arguments.postgres) as server, ValkeyProcess() as valkey:
        install(server.url)
        with psycopg.connect(plain_url(server.url)) as connection:
            print(connection.execute("SHOW server_version").fetchone()[0])
        bank = Bank(server.url)
        for kind, how in KINDS.items():
            for evict_after in (None, 0.2):
                waits = [
                    wait_for(bank, valkey.url, how, arguments.ttl, evict_after)
                    for _ in range(arguments.rounds)
                ]
                told = "never" if evict_after is None else f"after {evict_after} s"
                print(
                    f"{kind:24} ttl {arguments.ttl} s, evicted {told:12} "
                    + " ".join(f"{wait:6.2f} s" for wait in sorted(waits))
                )
        bank.close()


def wait_for(bank: Bank, redis_url: str, how: str, ttl: float, evict_after: float | None) -> float:
    account = bank.new_account()
    engine = create_engine(bank.url)
    locks = ScriptedLocks(100)
    with (
        ChildProcess(zombie, redis_url, "benchmark", bank.url, account, ttl, how) as child,
        Guard(locks, engine, evict_after=evict_after) as guard,
    ):
        backend = child.wait_for("open")["pid"]
        if how == "busy":
            bank.wait_until(f"{ACTIVITY} wait_event = 'PgSleep')", backend)
        elif how == "receiving":
            bank.wait_until(f"{ACTIVITY} query LIKE '%%repeat%%' AND state = 'active')", backend)
        child.suspend()
        began = time.monotonic()
        guard.acquire(f"account:{account}", ttl=PATIENCE, blocking_timeout=PATIENCE).release()
        took = time.monotonic() - began
        child.kill()
    engine.dispose()
    return took


if __name__ == "__main__":
    main()

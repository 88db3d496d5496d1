"""What is known of a transaction after the server has crashed: what it flushed, and no guess."""

from __future__ import annotations

import os
import signal
import uuid
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.embedded import PostgresProcess
from fencing.migration import install
from fencing.schema.names import claim_item
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLDER = "a" * 32
ENTER = "SELECT fencing.enter(%s, NULL, %s)"


@pytest.fixture
def server() -> Iterator[PostgresProcess]:
    with PostgresProcess({"restart_after_crash": "on"}) as server:
        install(server.url)
        yield server


@pytest.fixture
def url(server: PostgresProcess) -> str:
    return plain_url(server.url)


def crash(url: str) -> None:
    """Kill a backend, which makes the server end all others and recover; wait until it serves."""
    with (
        closing(psycopg.connect(url)) as victim,
        closing(psycopg.connect(url, autocommit=True)) as witness,
    ):
        started = witness.execute("SELECT pg_postmaster_start_time()").fetchone()
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        # Until the server has noticed: it ends this one, which has nothing to do with the other.
        with suppress(psycopg.OperationalError):
            while True:
                witness.execute("SELECT pg_sleep(0.01)")
    while True:
        try:
            with psycopg.connect(url) as connection:
                # The same process: only crash recovery tells one incarnation from the next.
                assert connection.execute("SELECT pg_postmaster_start_time()").fetchone() == started
                return
        except psycopg.OperationalError:
            continue  # it says that it is recovering


def enter(connection: psycopg.Connection, receipt: str | None) -> str:
    row = connection.execute(ENTER, (claim_item("account:42", 1, HOLDER), receipt)).fetchone()
    assert row is not None
    return row[0]


def ask(url: str, statement: str, *values: object) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(statement.encode(), values).fetchone()
        assert row is not None
        return row[0]


def test_a_receipt_tells_what_was_committed_and_what_was_not(url):
    ask(url, "SELECT fencing.admit('account:42', 1, %s, 'test', 0)", HOLDER)
    receipts = [str(uuid.uuid4()) for _ in range(2)]
    with closing(psycopg.connect(url)) as done, closing(psycopg.connect(url)) as cut:
        stamps = [enter(done, receipts[0]), enter(cut, receipts[1])]
        done.commit()
        crash(url)
    outcomes = [
        ask(url, "SELECT fencing.outcome(%s, %s, 0)", receipt, stamp)
        for receipt, stamp in zip(receipts, stamps, strict=True)
    ]
    assert outcomes == ["committed", "rolled back"]


def test_an_id_from_before_it_is_not_asked_about(url):
    ask(url, "SELECT fencing.admit('account:42', 1, %s, 'test', 0)", HOLDER)
    with closing(psycopg.connect(url)) as cut:
        stamp = enter(cut, None)
        cut.execute("SELECT pg_current_xact_id()")
        with psycopg.connect(url, autocommit=True) as asking:
            flight = asking.execute("SELECT * FROM fencing.in_flight(%s)", (stamp,)).fetchone()
            assert flight is not None
            assert flight[0] is not None
            look = "SELECT fencing.outcome_of(%s, %s)"
            assert asking.execute(look, flight).fetchone() == ("in progress",)
        crash(url)
    # Whatever the id is now, or whose: PostgreSQL may well call it committed.
    ask(url, "SELECT pg_current_xact_id()::text")
    assert ask(url, "SELECT fencing.outcome_of(%s, %s)", *flight) == "unknown"

"""An embedded PostgreSQL that crashes, and one that is replaced by its standby."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencing.embedded import PostgresProcess
from fencing.embedded.asking import until
from tests.support.databases import plain_url
from tests.support.processes import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator

DEBIAN = Path("/usr/lib/postgresql/15/bin")
missing = pytest.mark.skipif(not DEBIAN.exists(), reason="PostgreSQL 15 is not installed")


@pytest.fixture(params=[None, pytest.param(DEBIAN, marks=missing)], ids=["wheel", "v15"])
def primary(request: pytest.FixtureRequest) -> Iterator[PostgresProcess]:
    """A running server with an empty table t."""
    with PostgresProcess(bin_directory=request.param, in_memory=True) as server:
        run(server, "CREATE TABLE t (n int)")
        yield server


def run(server: PostgresProcess, statement: Any) -> None:
    with psycopg.connect(plain_url(server.url), autocommit=True) as connection:
        connection.execute(statement)


def write(server: PostgresProcess, n: int) -> None:
    run(server, f"INSERT INTO t VALUES ({n})")


def rows(server: PostgresProcess) -> list[int]:
    with psycopg.connect(plain_url(server.url)) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM t ORDER BY n")]


def test_a_commit_waits_for_the_log_as_shipped(primary: PostgresProcess) -> None:
    with psycopg.connect(plain_url(primary.url)) as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


def test_a_crash_ends_all_at_once_and_keeps_what_was_committed(primary: PostgresProcess) -> None:
    write(primary, 1)
    with psycopg.connect(plain_url(primary.url)) as open_one:
        open_one.execute("INSERT INTO t VALUES (2)")
        assert primary.pid is not None
        with Watch([primary.pid]) as everything:
            primary.crash()
            everything.wait()
        assert "immediate shutdown" in primary.process.log.read_text()
        with pytest.raises(psycopg.OperationalError):
            open_one.commit()
    primary.start()
    assert "was not properly shut down" in primary.process.log.read_text()
    assert rows(primary) == [1]


class TestAStandby:
    @pytest.fixture
    def standby(self, primary: PostgresProcess) -> Iterator[Any]:
        write(primary, 1)
        with primary.standby(in_memory=True) as standby:
            yield standby

    def test_follows_and_only_reads(self, primary: PostgresProcess, standby: Any) -> None:
        write(primary, 2)
        standby.await_in_step()
        assert rows(standby) == [1, 2]
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            write(standby, 3)

    def test_loses_acknowledged_writes_and_the_old_primary_comes_back(
        self, primary: PostgresProcess, standby: Any
    ) -> None:
        standby.await_in_step()
        standby.cut_off()
        write(primary, 2)
        primary.crash()
        standby.promote()
        write(standby, 3)
        assert rows(standby) == [1, 3]
        port = primary.port
        primary.start()
        assert primary.port == port
        assert rows(primary) == [1, 2]
        write(primary, 4)

    def test_that_was_cut_off_gets_what_it_has_missed(
        self, primary: PostgresProcess, standby: Any
    ) -> None:
        standby.cut_off()
        write(primary, 2)
        # The primary itself needs no more then what the standby has missed.
        for _ in range(2):
            run(primary, "SELECT pg_switch_wal()")
            run(primary, "CHECKPOINT")
        standby.follow()
        standby.await_in_step()
        assert rows(standby) == [1, 2]

    def test_shows_the_past_while_it_is_paused(
        self, primary: PostgresProcess, standby: Any
    ) -> None:
        standby.await_in_step()
        standby.pause()
        write(primary, 2)
        until(lambda: received(primary), "the standby did not receive it")
        assert rows(standby) == [1]
        standby.unpause()
        standby.await_in_step()
        assert rows(standby) == [1, 2]

    def test_is_there_again_after_a_kill(self, primary: PostgresProcess, standby: Any) -> None:
        standby.kill()
        write(primary, 2)
        standby.start()
        standby.await_in_step()
        assert rows(standby) == [1, 2]

    def test_of_a_server_that_does_not_run(self, primary: PostgresProcess) -> None:
        primary.stop()
        with (
            pytest.raises(RuntimeError, match="pg_basebackup ended with status"),
            primary.standby(),
        ):
            pass


def received(primary: PostgresProcess) -> bool:
    with psycopg.connect(plain_url(primary.url)) as connection:
        query = "SELECT bool_and(flush_lsn >= pg_current_wal_lsn()) FROM pg_stat_replication"
        return connection.execute(query).fetchone() == (True,)

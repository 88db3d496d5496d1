"""Clocks of servers and of worker processes that jump."""

from __future__ import annotations

import asyncio
import datetime as dt
import sys
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing import embedded
from fencing.embedded import PostgresProcess, ValkeyProcess
from fencing.embedded.asking import ask, until
from fencing.embedded.clocks import FalseClock
from tests.support.databases import plain_url
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.child import Parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is preloaded, as on Linux")

HOUR = 3600.0
NEAR = 600.0
"""Seconds that no test takes, and no jump is as short as."""


def ahead(valkey: ValkeyProcess) -> float:
    """How far a server's TIME is ahead of ours."""
    seconds, _ = ask(valkey, "TIME")
    return float(seconds) - time.time()


def await_ahead(valkey: ValkeyProcess, seconds: float) -> None:
    """Wait for its clock: it looks at that between commands, and may have done so just before."""
    until(lambda: ahead(valkey) == pytest.approx(seconds, abs=NEAR), "its clock has not jumped")


def test_a_server_s_time_jumps_and_comes_back() -> None:
    with ValkeyProcess(false_clock=True) as valkey:
        for jump in (0.0, HOUR, 0.0, -HOUR, 0.0):
            valkey.clock.set(jump)
            assert valkey.clock.seconds == jump
            await_ahead(valkey, jump)


def test_keys_expire_by_the_time_of_day() -> None:
    with ValkeyProcess(false_clock=True) as valkey:
        ask(valkey, "SET", "lock", 1, "PX", 60_000)
        valkey.clock.set(-HOUR)
        until(lambda: ask(valkey, "PTTL", "lock") > HOUR * 1e3, "the key's life is no longer")
        valkey.clock.set(HOUR)
        until(lambda: ask(valkey, "EXISTS", "lock") == 0, "the key has not expired")


def test_it_keeps_its_clock_when_it_is_started_again() -> None:
    with ValkeyProcess(false_clock=True) as valkey:
        valkey.clock.set(HOUR)
        valkey.kill()
        valkey.start()
        assert ahead(valkey) == pytest.approx(HOUR, abs=NEAR)


def test_postgresql_s_clock_jumps_in_sessions_there_are() -> None:
    def ahead(connection: psycopg.Connection) -> float:
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
        assert row
        return float(row[0]) - time.time()

    with (
        PostgresProcess(false_clock=True, in_memory=True) as postgres,
        psycopg.connect(plain_url(postgres.url), autocommit=True) as connection,
    ):
        for jump in (0.0, HOUR, -HOUR):
            postgres.clock.set(jump)
            assert ahead(connection) == pytest.approx(jump, abs=NEAR)


def tell_the_time(parent: Parent) -> None:
    while True:
        parent.wait_for("tell")
        parent.report(
            "time",
            time=time.time(),
            date=dt.datetime.now(dt.UTC).timestamp(),
            counted=time.clock_gettime(time.CLOCK_MONOTONIC),
            suspended=time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)),
        )


def wait_in_all_ways(parent: Parent) -> None:
    time.sleep(0.01)
    threading.Event().wait(0.01)
    threading.Lock().acquire(timeout=0.01)
    asyncio.run(asyncio.sleep(0.01))
    parent.report("waited")


def test_a_worker_s_time_of_day_jumps_and_nothing_else(tmp_path: Path) -> None:
    clock = FalseClock(tmp_path)
    with ChildProcess(tell_the_time, environment=clock.environment) as worker:
        for jump in (0.0, HOUR, -HOUR):
            clock.set(jump)
            worker.tell("tell")
            told = worker.wait_for("time")
            for name in ("time", "date"):
                assert told[name] - time.time() == pytest.approx(jump, abs=NEAR)
            assert told["counted"] == pytest.approx(time.monotonic(), abs=NEAR)
            boot_time = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
            assert told["suspended"] == pytest.approx(boot_time, abs=NEAR)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_worker_s_waits_are_as_long_as_ever(jump: float, tmp_path: Path) -> None:
    clock = FalseClock(tmp_path)
    clock.set(jump)
    with ChildProcess(wait_in_all_ways, environment=clock.environment) as worker:
        worker.wait_for("waited")
        worker.check()


def test_half_a_second_before_the_epoch_s_second(tmp_path: Path) -> None:
    clock = FalseClock(tmp_path)
    clock.set(-0.9)
    with ChildProcess(tell_the_time, environment=clock.environment) as worker:
        for _ in range(20):  # whatever the fraction of the true time is
            before = time.time()
            worker.tell("tell")
            told = worker.wait_for("time")
            assert before - 0.9 - 1e-3 <= told["time"]
            assert told["time"] <= time.time() - 0.9 + 1e-3


class TestWithoutOne:
    def test_there_is_none_to_set(self) -> None:
        with (
            ValkeyProcess() as valkey,
            pytest.raises(embedded.EmbeddedServerError, match="false_clock=True"),
        ):
            valkey.clock.set(HOUR)

    def test_a_missing_compiler_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shutil.which", lambda *_, **__: None)
        with pytest.raises(embedded.MissingServerError, match="apt-get install gcc libc6-dev"):
            FalseClock(tmp_path)
        with pytest.raises(embedded.MissingServerError, match="apt-get install gcc libc6-dev"):
            ValkeyProcess(false_clock=True)

    def test_one_that_does_not_compile_is_told(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wrong = tmp_path / "wrong.c"
        wrong.write_text("nonsense")
        monkeypatch.setattr("fencing.embedded.clocks.SOURCE", wrong)
        with pytest.raises(embedded.EmbeddedServerError, match=r"wrong\.c does not compile:\n.*"):
            FalseClock(tmp_path)


def test_nothing_of_it_is_left() -> None:
    with ValkeyProcess(false_clock=True) as valkey:
        directory = valkey.process.directory
    assert not directory.exists()

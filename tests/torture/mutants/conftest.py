"""Servers that schedules share, and the table of who caught which mutant."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from dataclasses import astuple
from typing import TYPE_CHECKING

import pytest
import redis

from fencing.embedded import PostgresProcess, ValkeyProcess
from fencing.torture.services.base import LockServers
from fencing.torture.settings import Settings
from fencing.torture.stage import POSTGRES_SETTINGS, Stage
from tests.torture.mutants.forking import ForkedWorker, Nursery
from tests.torture.mutants.schedule import Play
from tests.torture.mutants.schedules import SCHEDULES
from tests.torture.mutants.table import Caught, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from sqlalchemy import Engine

    from fencing.torture.settings import Plan

_PROPERTY = "caught mutant"


class _SharedRedis(LockServers):
    """A Redis that is emptied instead of started."""

    name = "redis"

    def __init__(self, server: ValkeyProcess) -> None:
        self._server = server

    def start(self, stage: Stage) -> None:  # noqa: ARG002 - as its base has it
        with redis.Redis.from_url(self._server.url) as client:
            client.flushall()

    def url(self, worker: str) -> str:  # noqa: ARG002 - the same for all
        return self._server.url

    def close(self) -> None:
        """It is others' as well."""


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresProcess]:
    # No work of its own in the background: what is committed without waiting is then on disk only
    # when somebody else waits.
    settings = {**POSTGRES_SETTINGS, "autovacuum": "off", "wal_writer_delay": "10s"}
    with PostgresProcess(settings, in_memory=True) as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[ValkeyProcess]:
    with ValkeyProcess() as server:
        yield server


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    if sys.platform != "linux":
        pytest.skip("workers are forked in a way that only Linux knows")
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def note_caught(record_property: Callable[[str, object], None]) -> Callable[[Caught], None]:
    """Reported with the test, so that it comes from processes of pytest-xdist as well."""

    def note_caught(caught: Caught) -> None:
        record_property(_PROPERTY, astuple(caught))

    return note_caught


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print who has caught which mutant."""
    caught = [
        Caught(*value)
        for report in terminalreporter.stats.get("passed", [])
        for name, value in report.user_properties
        if name == _PROPERTY
    ]
    if caught:
        terminalreporter.section("mutants")
        for row in rows_of(caught):
            terminalreporter.write_line(row)


@pytest.fixture
def open_stage(
    postgres: PostgresProcess, valkey: ValkeyProcess, nursery: Nursery
) -> Callable[[Settings], Stage]:
    def open_stage(settings: Settings) -> Stage:
        return Stage(
            settings, _SharedRedis(valkey), postgres=postgres,
            launch=lambda plan, **_: ForkedWorker(nursery, plan, ()),
        )  # fmt: skip

    return open_stage


Opened = "Callable[[str, Sequence[str], Callable[[Engine], None]], AbstractContextManager[Play]]"


@pytest.fixture
def open_play(postgres: PostgresProcess, valkey: ValkeyProcess, nursery: Nursery) -> Opened:
    @contextmanager
    def open_play(
        schedule: str,
        twists: Sequence[str] = (),
        prepare: Callable[[Engine], None] = lambda _: None,
        *,
        guarded: bool = True,
    ) -> Iterator[Play]:
        twists = (*SCHEDULES[schedule].twists, *twists)
        chosen: tuple[str, ...] = ()

        def choose(twists: tuple[str, ...]) -> None:
            nonlocal chosen
            chosen = twists

        def launch(plan: Plan, **_: object) -> ForkedWorker:
            return ForkedWorker(nursery, plan, chosen)

        def prepare_all(owner: Engine) -> None:
            with owner.begin() as connection:
                for statement in SCHEDULES[schedule].settings:
                    connection.exec_driver_sql(statement)
            prepare(owner)

        settings = Settings(
            workers=1, registers=1, sets=2, accounts=2, ttl=60.0, guarded=guarded, faults=()
        )
        stage = Stage(
            settings, _SharedRedis(valkey), launch=launch, prepare=prepare_all, postgres=postgres
        )
        with stage, redis.Redis.from_url(valkey.url) as client:
            yield Play(stage, client, twists, choose)

    return open_play

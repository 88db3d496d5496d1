"""A stage without workers: a database and a lock service that faults are done to."""

from __future__ import annotations

import time
from random import Random
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import NullPool, create_engine, text

from fencing.torture.faults.beside import LOOK
from fencing.torture.services import lock_servers
from fencing.torture.settings import Settings
from fencing.torture.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Engine

    from fencing.torture.faults.kinds import Steps


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    settings = Settings(ttl=0.05)
    with Stage(settings, lock_servers(settings.lock_service)) as stage:
        yield stage


@pytest.fixture
def chance() -> Random:
    return Random(1)


@pytest.fixture
def connect(stage: Stage) -> Iterator[Callable[[], Connection]]:
    """Opens sessions of the workers' role."""
    engine = create_engine(stage.database_url("w1.0"), poolclass=NullPool)
    opened: list[Connection] = []

    def connect() -> Connection:
        connection = engine.connect()
        connection.execute(text("SELECT 1"))
        connection.commit()
        opened.append(connection)
        return connection

    yield connect
    for connection in opened:
        connection.invalidate()
        connection.close()


def perform(steps: Steps) -> list[str]:
    """A fault from its beginning to its end, in no time; whom it struck."""
    struck = []
    for told in steps:
        if isinstance(told, str):
            struck.append(told)
        time.sleep(0.001)
    return struck


def begin(steps: Steps) -> None:
    """Go on with a fault until it is done, and lasts."""
    for told in steps:
        if isinstance(told, float) and told > LOOK:
            return
        time.sleep(0.001)
    pytest.fail("it did not last")


def value(engine: Engine, statement: str) -> object:
    """The one value that a query of a session of its own gives."""
    with engine.connect() as connection:
        return connection.execute(text(statement)).scalar()

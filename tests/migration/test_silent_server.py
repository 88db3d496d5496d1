"""A server that accepts connections and says nothing, or is gone: no command waits long for it."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from fencing.cli.main import main
from fencing.migration import connecting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result
    from sqlalchemy import URL

LIVENESS = {
    "keepalives_idle": "30",
    "keepalives_interval": "10",
    "keepalives_count": "3",
    "tcp_user_timeout": "60000",
}

COMMANDS = {
    "install": ((), 1),
    "verify": ((), 2),
    "raise": (("account:1", "5"), 1),
    "prune": (("--older-than", "30d"), 1),
}


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """The system accepts connections for it; nobody reads them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


def url_of(server: socket.socket, options: str = "") -> str:
    return f"postgresql://u:secret@127.0.0.1:{server.getsockname()[1]}/x{options}"


def call(*arguments: str, **environment: str | None) -> Result:
    return CliRunner().invoke(main, arguments, env={"PGCONNECT_TIMEOUT": None, **environment})


def check(result: Result, server: socket.socket, *, seconds: str, status: int = 1) -> None:
    port = server.getsockname()[1]
    assert f'Error: the server at "127.0.0.1", port {port}, did not let us in' in result.output
    assert f"within {seconds} s: see that it is a PostgreSQL" in result.output
    assert result.exit_code == status
    assert result.output.count("\n") == 1
    assert "secret" not in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_waits_longer_than_we_let_it(
    silent: socket.socket, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 1)
    arguments, status = COMMANDS[command]
    result = call(command, url_of(silent), *arguments)
    check(result, silent, seconds="2", status=status)


def test_a_timeout_in_the_url_goes_before(silent: socket.socket) -> None:
    check(call("install", url_of(silent, "?connect_timeout=1")), silent, seconds="1")


def test_so_does_one_in_the_environment(silent: socket.socket) -> None:
    check(call("install", url_of(silent), PGCONNECT_TIMEOUT="1"), silent, seconds="1")


def test_raise_does_not_wait_longer_than_its_timeout(silent: socket.socket) -> None:
    result = call("raise", url_of(silent), "account:1", "5", "--timeout", "0.5")
    check(result, silent, seconds="2")


def test_nor_does_the_demonstration(silent: socket.socket, redis_url: str) -> None:
    url = url_of(silent, "?connect_timeout=1")
    result = call("demo", "--json", "--redis-url", redis_url, "--database-url", url)
    assert result.exit_code == 1
    assert "cannot use PostgreSQL: the server at" in result.output
    assert "did not let us in within 1 s" in result.output


def parameters_at(url: URL) -> dict[str, str]:
    engine = connecting.engine_at(url)
    with engine.connect() as connection:
        parameters = connection.connection.driver_connection.info.get_parameters()
    return {name: parameters.get(name, "") for name in LIVENESS}


def test_a_host_that_is_gone_is_noticed_within_a_minute(database: str) -> None:
    assert parameters_at(make_url(database)) == LIVENESS


@pytest.mark.parametrize("name", LIVENESS)
def test_what_the_url_says_of_it_goes_before(database: str, name: str) -> None:
    url = make_url(database).update_query_dict({name: "7"})
    assert parameters_at(url) == {**LIVENESS, name: "7"}

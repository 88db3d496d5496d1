"""A server that accepts connections and says nothing: no command waits for it for long."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from fencing.cli.main import main
from fencing.migration import connecting

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

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

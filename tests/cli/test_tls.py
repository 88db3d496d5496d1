"""An address that asks for TLS, at a port where none is spoken."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from fencing.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Iterator

ADVICE = "name the port where it does, or use an address without TLS, such as redis://"
SILENT = (
    "the TLS handshake with Redis did not end in time: the server does not seem to speak TLS at "
    f"this port ({ADVICE}), or it is overloaded ("
)
REFUSED = (
    f"the TLS handshake with Redis failed: the server does not speak TLS at this port: {ADVICE} ("
)


@pytest.fixture
def refusing() -> Iterator[int]:
    """The port of a server that answers whatever it is told as some versions of Redis do."""

    def serve() -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            with client, suppress(OSError):
                client.recv(4096)
                client.sendall(b"-ERR Protocol error: unbalanced quotes in request\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve)
        serving.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        serving.join()


@pytest.fixture(params=["silent", "refusing"])
def no_tls(request: pytest.FixtureRequest) -> tuple[str, str]:
    """A host with its port and how long to wait for it, and what is told of it."""
    if request.param == "refusing":
        return f"127.0.0.1:{request.getfixturevalue('refusing')}?socket_timeout=10", REFUSED
    # As Redis is where the first words of TLS hold no end of a line.
    silent = request.getfixturevalue("silent")
    return f"127.0.0.1:{silent.getsockname()[1]}?socket_timeout=0.2", SILENT


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """The system accepts connections for it; nobody reads them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.mark.parametrize(
    ("command", "scheme", "status"),
    [
        ("verify", "rediss", 2),
        ("verify", "rediss+cluster", 2),
        ("locks", "rediss", 1),
        ("locks", "rediss+cluster", 1),
        ("demo", "rediss", 1),
    ],
)
def test_it_is_told_what_happened(
    no_tls: tuple[str, str], command: str, scheme: str, status: int
) -> None:
    host, told = no_tls
    url = f"{scheme}://{host}"
    nowhere = ("--database-url", "postgresql://127.0.0.1:1/x")
    arguments = ("--redis-url", url, *nowhere) if command == "demo" else (url,)
    result = CliRunner().invoke(main, [command, *arguments])
    assert result.exit_code == status
    assert told in result.stderr
    assert result.stderr.count("\n") == 1

"""PgBouncer in transaction mode, in front of a PostgreSQL: a program of the system's."""

from __future__ import annotations

import signal
import socket
from contextlib import closing
from urllib.parse import unquote, urlsplit, urlunsplit

from fencing.embedded.places import find_program
from fencing.embedded.postgres import unprivileged_identity
from fencing.embedded.process import ServerProcess, Signals
from fencing.embedded.server import LocalServer

__all__ = ["PgBouncer"]


LOGIN_RETRY = 0.1
"""When it asks a server again that was away, in seconds; its own default is 15."""


class PgBouncer(LocalServer):
    """A PgBouncer on 127.0.0.1 that asks nobody for a password.

    Args:
        server_url: Address of a database on the server behind it.
        pool_size: How many connections to the server it has for each database.
        query_wait_timeout: How long a client waits for one of them, in whole seconds.

    Raises:
        MissingProgramError: If it is not installed.
    """

    START_TIMEOUT = 10.0

    def __init__(self, server_url: str, *, pool_size: int, query_wait_timeout: int = 10) -> None:
        self._program = find_program("pgbouncer", "pgbouncer")
        self._server = urlsplit(server_url)
        self._pool_size = pool_size
        self._query_wait_timeout = query_wait_timeout
        # SIGTERM is its immediate end; SIGINT waits for clients.
        signals = Signals(signal.SIGTERM, signal.SIGTERM, signal.SIGTERM)
        # It refuses to run as root.
        super().__init__(ServerProcess("pgbouncer", signals, unprivileged_identity()), None)

    def address(self, url: str) -> str:
        """The address of a database on the server, as it is reached through here."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def launch(self) -> None:
        """Start it without waiting until it serves; `await_ready` must follow."""
        server = self._server
        user = f" user={unquote(server.username)}" if server.username else ""
        password = f" password={unquote(server.password)}" if server.password else ""
        config = self.process.directory / "pgbouncer.ini"
        config.write_text(
            f"""
[databases]
* = host={server.hostname} port={server.port or 5432}{user}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {self._pool_size}
max_client_conn = 100
query_wait_timeout = {self._query_wait_timeout}
server_login_retry = {LOGIN_RETRY}
server_tls_sslmode = disable
""",
            "utf-8",
        )
        config.chmod(0o644)
        self.process.run([self._program, config])

    def _serves(self) -> bool:
        """Whether it accepts connections."""
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

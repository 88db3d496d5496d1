"""PgBouncer in transaction mode, in front of a PostgreSQL; for tests.

It is a program of the system's (``apt-get install pgbouncer``). Tests that need it are skipped
where there is none, except in CI, where they fail.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
from contextlib import closing

import pytest
from sqlalchemy.engine import make_url

from fencing.embedded.places import free_port
from fencing.embedded.postgres import unprivileged_identity
from fencing.embedded.process import ServerProcess, Signals
from fencing.embedded.server import LocalServer

__all__ = ["PgBouncer", "find_pgbouncer"]


def find_pgbouncer() -> str:
    """Path of the program; skips the test that asks where it is not installed."""
    # Debian installs it where only root looks.
    path = shutil.which("pgbouncer", path=os.pathsep.join([os.environ["PATH"], "/usr/sbin"]))
    if path is None:
        said = "PgBouncer is not installed (apt-get install pgbouncer)"
        if os.environ.get("CI") == "true":
            pytest.fail(said)
        pytest.skip(said)
    return path


class PgBouncer(LocalServer):
    """A PgBouncer of this process's own; a context manager.

    Args:
        server_url: SQLAlchemy address of a database on the server behind it.
        pool_size: How many connections to the server it has for each database.
        query_wait_timeout: How long a client waits for one of them, in whole seconds.
    """

    START_TIMEOUT = 10.0

    def __init__(self, server_url: str, *, pool_size: int, query_wait_timeout: int = 10) -> None:
        self._program = find_pgbouncer()
        self._server = make_url(server_url)
        self._pool_size = pool_size
        self._query_wait_timeout = query_wait_timeout
        # SIGTERM is its immediate end; SIGINT waits for clients.
        signals = Signals(signal.SIGTERM, signal.SIGTERM, signal.SIGTERM)
        # It refuses to run as root.
        super().__init__(ServerProcess("pgbouncer", signals, unprivileged_identity()), free_port())
        self._fixed_port = False

    def address(self, url: str) -> str:
        """The address of a database on the server, as it is reached through here."""
        through = make_url(url).set(host="127.0.0.1", port=self.port)
        return through.render_as_string(hide_password=False)

    def launch(self) -> None:
        """Start it without waiting until it serves; `await_ready` must follow."""
        server = self._server
        password = f" password={server.password}" if server.password else ""
        config = self.process.directory / "pgbouncer.ini"
        config.write_text(
            f"""
[databases]
* = host={server.host} port={server.port or 5432} user={server.username}{password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {self._pool_size}
max_client_conn = 100
query_wait_timeout = {self._query_wait_timeout}
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

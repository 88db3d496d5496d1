"""Real servers from wheels, for development, the demonstration and tests.

::

    from fencing import embedded

    with embedded.start() as servers:
        print(servers.database_url, servers.redis_url)

Each server is a child of a supervisor of its own, which ends it and removes its temporary
directory as soon as the process that started it has ended, in whatever way: by leaving the block,
by an exception, Ctrl-C, SIGTERM or SIGKILL. If the supervisor is killed, too, Linux ends the
server; the directory then goes with `EmbeddedServers.stop`, or stays if nobody is left to call it.

They listen on 127.0.0.1 only, and trust everyone who can connect there; PostgreSQL runs with
``fsync`` off. They are not for production.

The wheels come with ``pip install "fencing[embedded]"``.

What makes them fail, and servers that no wheel brings, are in modules of their own, each imported
by who needs it: `proxy` and `clocks`; `standby`, `cluster` and `sentinel`; `etcd`, `zookeeper` and
`pgbouncer`.
"""

from __future__ import annotations

import contextlib
import selectors
from typing import TYPE_CHECKING

from fencing.embedded.places import EmbeddedServerError, MissingServerError
from fencing.embedded.postgres import PostgresProcess
from fencing.embedded.valkey import ValkeyProcess

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

__all__ = [
    "EmbeddedServerError",
    "EmbeddedServers",
    "MissingServerError",
    "PostgresProcess",
    "ValkeyProcess",
    "start",
]


class EmbeddedServers:
    """The servers that `start` has started; a context manager that stops them.

    Attributes:
        postgres: The PostgreSQL server, if it was asked for.
        valkey: The Valkey server, if it was asked for.
    """

    def __init__(self, postgres: PostgresProcess | None, valkey: ValkeyProcess | None) -> None:
        self.postgres = postgres
        self.valkey = valkey

    @property
    def database_url(self) -> str:
        """PostgreSQL's address, for SQLAlchemy with psycopg 3.

        Raises:
            EmbeddedServerError: If there is no PostgreSQL here.
        """
        return self._postgres.url

    @property
    def redis_url(self) -> str:
        """Valkey's address, for redis-py.

        Raises:
            EmbeddedServerError: If there is no Valkey here.
        """
        return self._valkey.url

    @property
    def postgres_pid(self) -> int | None:
        """The process id of PostgreSQL's postmaster; None if it does not run."""
        return self._postgres.pid

    @property
    def redis_pid(self) -> int | None:
        """The process id of Valkey; None if it does not run."""
        return self._valkey.pid

    def wait(self) -> None:
        """Wait for ever, or rather until a server ends that nobody has stopped.

        Raises:
            EmbeddedServerError: When one has ended.
        """
        with selectors.DefaultSelector() as selector:
            for server in self._servers():
                selector.register(server.process, selectors.EVENT_READ, server)
            ended = [key.data for key, _ in selector.select()]
        for server in ended:
            status = server.process.wait(timeout=0.0)
            message = f"{server.process.name} has ended with status {status}"
            raise EmbeddedServerError(message)

    def stop(self) -> None:
        """Stop the servers and remove their directories; once more does nothing."""
        with contextlib.ExitStack() as stack:
            for server in self._servers():
                stack.callback(server.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _servers(self) -> list[PostgresProcess | ValkeyProcess]:
        return [server for server in (self.postgres, self.valkey) if server is not None]

    @property
    def _postgres(self) -> PostgresProcess:
        if self.postgres is None:
            message = "started without PostgreSQL"
            raise EmbeddedServerError(message)
        return self.postgres

    @property
    def _valkey(self) -> ValkeyProcess:
        if self.valkey is None:
            message = "started without Valkey"
            raise EmbeddedServerError(message)
        return self.valkey


def start(
    *,
    postgres: bool = True,
    redis: bool = True,
    postgres_settings: Mapping[str, str] | None = None,
    in_memory: bool = False,
) -> EmbeddedServers:
    """Start the servers, both at once, and wait until they serve: about a second.

    Args:
        postgres: Whether to start PostgreSQL.
        redis: Whether to start Valkey, which speaks the protocol of Redis.
        postgres_settings: Settings for ``postgresql.conf``, by name; they override the defaults,
            ``fsync=off`` among them.
        in_memory: Keep PostgreSQL's data in memory (``/dev/shm``) where there is 1 GiB to spare:
            faster, for tests.

    Returns:
        The running servers; use them as a context manager, or call ``stop()``.

    Raises:
        MissingServerError: If a wheel is not installed.
        EmbeddedServerError: If a server does not start.
    """
    with contextlib.ExitStack() as started:
        valkey = ValkeyProcess() if redis else None
        if valkey is not None:
            started.callback(valkey.close)
            valkey.launch()
        database = PostgresProcess(postgres_settings, in_memory=in_memory) if postgres else None
        if database is not None:
            started.callback(database.close)
            database.start()
        if valkey is not None:
            valkey.await_ready()
        started.pop_all()
    return EmbeddedServers(database, valkey)

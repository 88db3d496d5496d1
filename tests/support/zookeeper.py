"""A real ZooKeeper for tests: Debian's package, in a directory of its own, ended for sure.

::

    with ZooKeeperProcess() as server:
        locks = ZooKeeperLockService.from_url(server.url)
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencing.embedded.process import ServerProcess, Signals

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["MISSING", "Ensemble", "ZooKeeperProcess", "free_ports"]

_JAR = Path("/usr/share/java/zookeeper.jar")

MISSING = (
    ""
    if shutil.which("java") and _JAR.exists()
    else "ZooKeeper is not installed: apt-get install zookeeper, or set FENCING_TEST_ZOOKEEPER_URL"
)
"""Why there is no ZooKeeper; empty if there is."""

_SETTINGS = """\
tickTime=100
initLimit=50
syncLimit=20
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
minSessionTimeout=200
maxSessionTimeout=60000
4lw.commands.whitelist=ruok,srvr
"""

_SIGNALS = Signals(orderly=signal.SIGTERM, disposal=signal.SIGKILL, orphaned=signal.SIGKILL)


def free_ports(number: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class ZooKeeperProcess:
    """One server.

    Args:
        port: Where it listens for clients; default: a free port.
        more: More lines for its configuration, of which ``{data}`` is its directory.
        number: Its number in an ensemble.
        options: Options for Java.

    Attributes:
        port: Where it listens for clients.
    """

    def __init__(
        self, port: int = 0, more: str = "", number: int = 0, options: tuple[str, ...] = ()
    ) -> None:
        if MISSING:
            pytest.skip(MISSING)
        self._options = options
        self.port = port or free_ports(1)[0]
        self._process = ServerProcess("zookeeper", _SIGNALS, in_memory=True)
        self._data = self._process.directory / "data"
        self._data.mkdir()
        if number:
            (self._data / "myid").write_text(str(number))
        self._settings = self._process.directory / "zoo.cfg"
        self._settings.write_text(_SETTINGS.format(data=self._data, port=self.port) + more)
        self.start()

    @property
    def url(self) -> str:
        """Its address for a lock service."""
        return f"zookeeper://127.0.0.1:{self.port}/"

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return self._process.pid

    def start(self) -> None:
        """Start it, with the data it has."""
        self._process.run(
            [
                "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
                "-Dzookeeper.forceSync=no", *self._options,
                "-cp", _JAR, "org.apache.zookeeper.server.quorum.QuorumPeerMain", self._settings,
            ]
        )  # fmt: skip

    def until_ready(self) -> None:
        """Wait until it serves clients."""
        self._process.until(self._serves, 30.0)

    def kill(self) -> None:
        """End it at once; what it has written stays."""
        self._process.end(signal.SIGKILL)

    def wipe(self) -> None:
        """Throw its data away, while it does not run."""
        for each in self._data.iterdir():
            if each.is_dir():
                shutil.rmtree(each)

    def _serves(self) -> bool:
        return b"Mode:" in self.says(b"srvr")

    def says(self, word: bytes) -> bytes:
        """What it answers to one of its four-letter words; nothing if it cannot be asked."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(word)
                return b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return b""

    def close(self) -> None:
        """End it, and remove its directory."""
        self._process.close()

    def __enter__(self) -> Self:
        try:
            self.until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class Ensemble:
    """Three servers that elect a leader.

    Attributes:
        servers: Each of them.
    """

    def __init__(self) -> None:
        ports = free_ports(9)
        members = "".join(
            f"server.{n + 1}=127.0.0.1:{ports[3 + 2 * n]}:{ports[4 + 2 * n]}\n" for n in range(3)
        )
        self._stack = contextlib.ExitStack()
        self.servers: list[ZooKeeperProcess] = []
        try:
            for n in range(3):
                server = ZooKeeperProcess(ports[n], members, n + 1)
                self._stack.callback(server.close)
                self.servers.append(server)
            for server in self.servers:
                server.until_ready()
        except BaseException:
            self._stack.close()
            raise

    @property
    def url(self) -> str:
        """Its address for a lock service."""
        return f"zookeeper://{','.join(f'127.0.0.1:{s.port}' for s in self.servers)}/"

    @property
    def leader(self) -> ZooKeeperProcess:
        """The server that leads now."""
        return next(server for server in self.servers if b"Mode: leader" in server.says(b"srvr"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

"""A ZooKeeper, of which the system has the program, and an ensemble of three.

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

from fencing.embedded.data import ServerWithData
from fencing.embedded.places import MissingProgramError, find_program, free_port
from fencing.embedded.process import ServerProcess, Signals

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["Ensemble", "ZooKeeperProcess"]

PACKAGE = "zookeeper"
JAR = Path("/usr/share/java/zookeeper.jar")
SETTINGS = """\
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


class ZooKeeperProcess(ServerWithData):
    """One ZooKeeper on 127.0.0.1; its data is kept from `start` to `start`.

    Args:
        port: Where it listens for clients; by default a free port.
        settings: More lines for its configuration.
        number: Its number in an ensemble.
        options: Options for Java.

    Raises:
        MissingProgramError: If it is not installed.
    """

    START_TIMEOUT = 30.0

    def __init__(
        self,
        *,
        port: int | None = None,
        settings: str = "",
        number: int | None = None,
        options: tuple[str, ...] = (),
    ) -> None:
        self._java = find_program("java", PACKAGE)
        if not JAR.exists():
            raise MissingProgramError("ZooKeeper", PACKAGE)
        self._options = options
        self._more = settings
        signals = Signals(orderly=signal.SIGTERM, disposal=signal.SIGKILL, orphaned=signal.SIGKILL)
        super().__init__(ServerProcess("zookeeper", signals, in_memory=True), port)
        self.data.mkdir()
        if number is not None:
            (self.data / "myid").write_text(str(number))

    @property
    def url(self) -> str:
        """Its address, for a lock service."""
        return f"zookeeper://127.0.0.1:{self.port}/"

    def launch(self) -> None:
        """Start it without waiting, with the data it has; `await_ready` must follow."""
        settings = self.process.directory / "zoo.cfg"
        settings.write_text(SETTINGS.format(data=self.data, port=self.port) + self._more)
        self.process.run(
            [
                self._java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
                "-Dzookeeper.forceSync=no", *self._options,
                "-cp", JAR, "org.apache.zookeeper.server.quorum.QuorumPeerMain", settings,
            ]
        )  # fmt: skip

    def forget(self) -> None:
        """Throw its data away, not its number; it must have been stopped."""
        for each in self.data.iterdir():
            if each.is_dir():
                shutil.rmtree(each)

    def says(self, word: bytes) -> bytes:
        """What it answers to one of its four-letter words; nothing if it cannot be asked."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5.0) as connection:
                connection.sendall(word)
                return b"".join(iter(lambda: connection.recv(4096), b""))
        except OSError:
            return b""

    def _serves(self) -> bool:
        return b"Mode:" in self.says(b"srvr")


class Ensemble:
    """Three servers that elect a leader; a context manager.

    Attributes:
        servers: Each of them.

    Raises:
        MissingProgramError: If ZooKeeper is not installed.
    """

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.servers: list[ZooKeeperProcess] = []
        with contextlib.ExitStack() as stack:
            members = "".join(
                f"server.{number}=127.0.0.1:{free_port(stack)}:{free_port(stack)}\n"
                for number in (1, 2, 3)
            )
            for number in (1, 2, 3):
                server = ZooKeeperProcess(settings=members, number=number)
                stack.callback(server.close)
                self.servers.append(server)
            self._stack = stack.pop_all()

    @property
    def url(self) -> str:
        """Its address, for a lock service."""
        return f"zookeeper://{','.join(f'127.0.0.1:{s.port}' for s in self.servers)}/"

    @property
    def leader(self) -> ZooKeeperProcess:
        """The server that leads now.

        Raises:
            LookupError: If none does.
        """
        for server in self.servers:
            if b"Mode: leader" in server.says(b"srvr"):
                return server
        message = "no server of the ensemble leads"
        raise LookupError(message)

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.await_ready()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

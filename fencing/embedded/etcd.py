"""An etcd, of which the system has the program; it ends with the process that started it."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

from fencing.embedded.data import ServerWithData
from fencing.embedded.places import find_program
from fencing.embedded.process import ServerProcess, Signals

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EtcdProcess", "ask_etcd"]


@functools.cache
def _options_of(path: str) -> str:
    done = subprocess.run([path, "--help"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def ask_etcd(  # an answer is whatever JSON says
    url: str, path: str, body: dict[str, Any] | None = None, token: str = ""
) -> Any:  # noqa: ANN401 - as above
    """Ask an etcd for something, by its JSON gateway.

    Args:
        url: Its address, ``http://`` or ``https://``.
        path: What to ask for, such as ``v3/kv/range``.
        body: The question; without one it is a GET.
        token: Of a user who has logged in.

    Returns:
        The answer.

    Raises:
        OSError: If it cannot be reached within 5 s, or refuses.
    """
    request = urllib.request.Request(  # noqa: S310 - the caller's own server
        f"{url}/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": token} if token else {},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310 - as above
        return json.loads(answer.read())


class EtcdProcess(ServerWithData):
    """One etcd on 127.0.0.1, by itself a cluster; its data is kept from `start` to `start`.

    Args:
        *arguments: Further command-line arguments.
        scheme: ``http``, or ``https`` where the arguments say so.
        program: The server to run; by default the ``etcd`` on the PATH.

    Raises:
        MissingProgramError: If it is not installed.
    """

    START_TIMEOUT = 30.0

    def __init__(self, *arguments: str, scheme: str = "http", program: str | None = None) -> None:
        self._program = program or find_program("etcd", "etcd-server")
        self._arguments = arguments
        self._scheme = scheme
        signals = Signals(orderly=signal.SIGTERM, disposal=signal.SIGKILL, orphaned=signal.SIGKILL)
        super().__init__(ServerProcess("etcd", signals, in_memory=True), None)
        self._choose_others()

    def _choose_others(self) -> None:
        self._peer_port = self._free_port()
        self._metrics_port = self._free_port()

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._choose_others()

    @property
    def endpoint(self) -> str:
        """Where its clients find it."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Its address, for a lock service."""
        return f"etcd{self._scheme[4:]}://127.0.0.1:{self.port}/"

    def launch(self) -> None:
        """Start it without waiting; `await_ready` must follow."""
        peer = f"http://127.0.0.1:{self._peer_port}"
        options = _options_of(self._program)
        # fmt: off
        arguments: Sequence[str] = (
            "--data-dir", str(self.data),
            "--listen-client-urls", self.endpoint,
            "--advertise-client-urls", self.endpoint,
            "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
            "--listen-metrics-urls", f"http://127.0.0.1:{self._metrics_port}",
        )
        # fmt: on
        fast = ["--unsafe-no-fsync"] if "unsafe-no-fsync" in options else []
        self.process.run([self._program, *arguments, *fast, *self._arguments])

    def _serves(self) -> bool:
        """Whether it has a leader, and so would take a write."""
        try:
            health = ask_etcd(f"http://127.0.0.1:{self._metrics_port}", "health")
        except (OSError, ValueError):
            return False
        return str(health.get("health")).lower() == "true"

"""An etcd of the tests' own, on this machine; it ends with the process that started it."""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import subprocess
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.places import free_port
from fencing.embedded.process import ServerProcess, Signals
from fencing.embedded.server import LocalServer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EtcdProcess", "ask_etcd", "etcd_program", "needs_etcd"]

MISSING = (
    "etcd is not installed: apt-get install etcd-server, or put another one on the PATH, or name "
    "it by FENCING_TEST_ETCD"
)


def etcd_program() -> str | None:
    """The program to run, if there is one."""
    return os.environ.get("FENCING_TEST_ETCD") or shutil.which("etcd")


def needs_etcd() -> str:
    """The program; the test is skipped where there is none."""
    program = etcd_program()
    if program is None:
        pytest.skip(MISSING)
    return program


@functools.cache
def _options_of(program: str) -> str:
    done = subprocess.run([program, "--help"], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def ask_etcd(url: str, path: str, body: dict[str, Any] | None = None, token: str = "") -> Any:
    """Ask an etcd for something, without the package that is tested."""
    request = urllib.request.Request(
        f"{url}/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": token} if token else {},
    )
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.loads(answer.read())


class EtcdProcess(LocalServer):
    """One etcd on 127.0.0.1, by itself a cluster; its data is kept from `start` to `start`.

    Args:
        *arguments: Further command-line arguments.
        scheme: ``http``, or ``https`` where the arguments say so.
    """

    START_TIMEOUT = 30.0

    def __init__(self, *arguments: str, scheme: str = "http") -> None:
        self._program = needs_etcd()
        self._arguments = arguments
        self._scheme = scheme
        self._peer_port = free_port()
        self._metrics_port = free_port()
        signals = Signals(orderly=signal.SIGTERM, disposal=signal.SIGKILL, orphaned=signal.SIGKILL)
        super().__init__(ServerProcess("etcd", signals, in_memory=True), None)

    @property
    def endpoint(self) -> str:
        """Where its clients find it."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        """Its address, for a lock service."""
        return f"etcd{self._scheme[4:]}://127.0.0.1:{self.port}/"

    @property
    def data(self) -> str:
        """The folder with its data."""
        return str(self.process.directory / "data")

    def launch(self) -> None:
        """Start it without waiting; `await_ready` must follow."""
        peer = f"http://127.0.0.1:{self._peer_port}"
        options = _options_of(self._program)
        # fmt: off
        arguments: Sequence[str] = (
            "--data-dir", self.data,
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

    def forget(self) -> None:
        """Throw its data away; it must have been stopped."""
        shutil.rmtree(self.data)

    def keep(self, name: str) -> None:
        """Copy its data; it must have been stopped."""
        shutil.copytree(self.data, self.process.directory / name)

    def restore(self, name: str) -> None:
        """Take what was copied for its data; it must have been stopped."""
        self.forget()
        shutil.copytree(self.process.directory / name, self.data)

    def _serves(self) -> bool:
        """Whether it has a leader, and so would take a write."""
        try:
            health = ask_etcd(f"http://127.0.0.1:{self._metrics_port}", "health")
        except (OSError, ValueError):
            return False
        return str(health.get("health")).lower() == "true"

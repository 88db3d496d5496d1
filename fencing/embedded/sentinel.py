"""A primary, its replicas, and the Sentinels that watch them: embedded servers."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import redis

from fencing.embedded.asking import ask, until
from fencing.embedded.valkey import ValkeyProcess

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

__all__ = ["SERVICE", "Watched"]

SERVICE = "main"
SENTINELS = 3
DOWN_AFTER = 500
"""After how long a server counts as down, in milliseconds."""


class SentinelProcess(ValkeyProcess):
    """A Sentinel; its file of settings, which it writes itself, is in its directory."""

    def __init__(self, primary: ValkeyProcess) -> None:
        super().__init__()
        self._primary = primary

    def launch(self) -> None:
        """Start it without waiting; `await_ready` must follow."""
        settings = self.process.directory / "sentinel.conf"
        if not settings.exists():
            settings.write_text(
                f"sentinel monitor {SERVICE} 127.0.0.1 {self._primary.port} 2\n"
                f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}\n"
                f"sentinel failover-timeout {SERVICE} 4000\n"
            )
        # fmt: off
        self.process.run([
            self._program, settings, "--sentinel",
            "--bind", "127.0.0.1",
            "--port", str(self.port),
            "--dir", str(self.process.directory),
        ])
        # fmt: on

    def _serves(self) -> bool:
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1) as client:
                return bool(client.info("server")["process_id"] == self.pid)
        except redis.RedisError:
            return False


class Watched:
    """Three Sentinels, a primary and replicas.

    Attributes:
        servers: The first primary and the replicas; failovers change the roles.
        sentinels: The Sentinels.
    """

    def __init__(self, replicas: int = 2) -> None:
        self._stack = contextlib.ExitStack()
        settings = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
        self.servers = [ValkeyProcess(*settings) for _ in range(1 + replicas)]
        self.sentinels: list[SentinelProcess] = []
        self._hanging: set[int] = set()

    @property
    def _answering(self) -> list[SentinelProcess]:
        return [each for n, each in enumerate(self.sentinels) if n not in self._hanging]

    def hang(self, number: int) -> None:
        """Let a Sentinel hang from now on."""
        self._hanging.add(number)
        self.sentinels[number].suspend()

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the Sentinels are."""
        return [("127.0.0.1", sentinel.port) for sentinel in self.sentinels]

    @property
    def url(self) -> str:
        """Its address, for a lock service."""
        hosts = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    def ask(self, server: ValkeyProcess, *words: str | int) -> Any:  # noqa: ANN401 - as it answers
        """Run a command on one server or Sentinel."""
        return ask(server, *words)

    @property
    def primary(self) -> ValkeyProcess:
        """The primary that the Sentinels name."""
        _, port = self.ask(self._answering[0], "SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)
        return next(server for server in self.servers if server.port == int(port))

    def await_another(self, old: ValkeyProcess) -> None:
        """Wait until another server is the primary, and every Sentinel says so."""

        def named(sentinel: ValkeyProcess) -> int:
            return int(self.ask(sentinel, "SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

        def agreed() -> bool:
            ports = {named(sentinel) for sentinel in self._answering}
            return len(ports) == 1 and old.port not in ports

        until(agreed, "there was no failover")
        new = self.primary
        until(lambda: self.ask(new, "ROLE")[0] == b"master", "the new primary is none")

    def await_replicas(self, count: int) -> None:
        """Wait until so many replicas are linked to the primary, and the Sentinels know them."""
        primary = self.primary

        def known(sentinel: ValkeyProcess) -> bool:
            facts = self.ask(sentinel, "SENTINEL MASTER", SERVICE)
            return bool(
                facts["num-slaves"] >= count and facts["num-other-sentinels"] == SENTINELS - 1
            )

        def linked() -> bool:
            info = self.ask(primary, "INFO", "replication")
            states = [info[f"slave{n}"]["state"] for n in range(info["connected_slaves"])]
            return states.count("online") >= count

        until(linked, "the replicas were not linked")
        until(lambda: all(map(known, self._answering)), "the Sentinels did not find all")

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for server in self.servers:
                stack.callback(server.close)
                server.launch()
            for server in self.servers:
                server.await_ready()
            for replica in self.servers[1:]:
                self.ask(replica, "REPLICAOF", "127.0.0.1", self.servers[0].port)
            self.sentinels = [SentinelProcess(self.servers[0]) for _ in range(SENTINELS)]
            for sentinel in self.sentinels:
                stack.callback(sentinel.close)
                sentinel.launch()
            for sentinel in self.sentinels:
                sentinel.await_ready()
            self.await_replicas(len(self.servers) - 1)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

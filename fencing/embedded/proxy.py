"""A TCP proxy that fails on command, and counts what passes.

::

    with TcpProxy.to(redis_url) as proxy:
        client = redis.Redis.from_url(proxy.url)
        proxy.swallow_reply(containing=b"EVALSHA")
        ...                                     # executed by the server, unknown to the client
        proxy.swallowed.wait(10)
        assert proxy.commands("EVALSHA") == 1

It runs an event loop in a thread of its own, so it serves sync and async tests alike.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fencing.embedded.protocols import (
    HttpRequests,
    PostgresRequests,
    RedisRequests,
    Request,
    ZooKeeperRequests,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine
    from types import TracebackType
    from typing import Any, Self

__all__ = ["TcpProxy"]

T = TypeVar("T")
CHUNK = 65536


class Link:
    """One client's connection, and ours to the server on its behalf."""

    def __init__(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        requests: RedisRequests | PostgresRequests | HttpRequests | ZooKeeperRequests,
    ) -> None:
        self.from_client, self.to_client = client
        self.from_server, self.to_server = server
        self.requests = requests
        self.swallowing = self.silent = False
        self.answered = True

    def cut(self) -> None:
        """Close both connections at once."""
        self.to_client.transport.abort()
        self.to_server.transport.abort()


class TcpProxy:
    """Listens on a port of 127.0.0.1 and passes everything on to one server.

    Attributes:
        url: The server's address with the proxy's host and port in it.
        port: The proxy's TCP port.
        connections: How many connections clients have made.
        requests: What clients have sent: per command of Redis its words, per message of PostgreSQL
            its type and, where it has one, its SQL, per request to etcd its path and its body.
        turns: How often a client has spoken after it was answered: round trips, unless it speaks
            before its answer has come.
        bytes_sent: How many bytes clients have sent.
        bytes_received: How many bytes have gone back to clients.
        swallowed: Set when a reply has been swallowed.
        withheld: Set when a request has been withheld.
        held: Set while a reply is held back.
        kept_back: Set when something was kept back.
    """

    def __init__(
        self,
        url: str,
        host: str,
        port: int,
        protocol: Callable[[], Any] = RedisRequests,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._tls = tls
        self._target = (host, port)
        self._protocol = protocol
        self._armed: bytes | None = None
        self._withholding: bytes | None = None
        self._passed_on: asyncio.Future[bool] | None = None
        self._keeping_back: tuple[bytes, ...] = ()
        self._kept_back: list[tuple[Link, bytes]] = []
        self._delay = 0.0
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.swallowed = threading.Event()
        self.withheld = threading.Event()
        self.held = threading.Event()
        self.kept_back = threading.Event()
        self.reset_counts()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self.port = 0
        self.port = self._run(self._listen())
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")
        netloc = f"{user[0]}{user[1]}127.0.0.1:{self.port}"
        scheme = parts.scheme if tls is None else "rediss"
        self.url = urlunsplit(parts._replace(scheme=scheme, netloc=netloc))

    @classmethod
    def to(cls, url: str, tls: ssl.SSLContext | None = None) -> Self:
        """Make a proxy to the server at a redis://, postgresql://, etcd:// or zookeeper:// URL.

        Args:
            url: The address.
            tls: What clients of a Redis are to speak TLS by; the server itself does not.
        """
        parts = urlsplit(url)
        kinds: dict[str, tuple[int, Callable[[], Any]]] = {
            "redis": (6379, RedisRequests), "rediss": (6379, RedisRequests),
            "etcd": (2379, HttpRequests),
            "zookeeper": (2181, ZooKeeperRequests),
        }  # fmt: skip
        port, protocol = kinds.get(parts.scheme, (5432, PostgresRequests))
        return cls(url, parts.hostname or "127.0.0.1", parts.port or port, protocol, tls)

    # ------------------------------------------------------------------ commands

    def swallow_reply(self, containing: bytes = b"") -> None:
        """Lose the reply to the next request, and cut the connection instead.

        The server has executed the request: its reply has arrived here.

        Args:
            containing: Only to a request that contains these bytes.
        """
        self.swallowed.clear()
        self._armed = containing

    def withhold_request(self, containing: bytes) -> None:
        """Keep the next such request, and cut its client off; the server waits on for it.

        Args:
            containing: Bytes that the request contains.
        """
        self.withheld.clear()
        self._withholding = containing

    def pass_withheld_on(self) -> None:
        """Let the server have what was withheld, late."""
        self._run(self._end_withholding(passed_on=True))

    def drop_withheld(self) -> None:
        """End the server's connection without it."""
        self._run(self._end_withholding(passed_on=False))

    def keep_back(self, *containing: bytes) -> None:
        """From now on keep back what the server says with any of these in it, and nothing else."""
        self.kept_back.clear()
        self._keeping_back = containing

    def deliver(self, times: int = 1) -> None:
        """Deliver what was kept back, so many times (0 loses it), and keep back no more."""
        self._run(self._deliver(times))

    def delay(self, seconds: float) -> None:
        """Deliver every reply so many seconds late; 0 ends it."""
        self._delay = seconds

    def hold(self) -> None:
        """Hold back all replies until `release`; not those to a heartbeat."""
        self._run(self._set_gate(opened=False))

    def silence(self) -> None:
        """Let nothing pass on any of the connections there are, as a firewall that dropped them."""
        for link in list(self._links):
            link.silent = True

    def release(self) -> None:
        """Deliver what has been held back, and all that follows."""
        self._run(self._set_gate(opened=True))

    def cut(self) -> None:
        """Close all connections."""
        self._run(self._cut())

    def refuse(self) -> None:
        """Close all connections and refuse new ones, as if there were no server."""
        self._run(self._refuse())

    def accept(self) -> None:
        """Accept connections again, on the same port."""
        self._run(self._listen())

    # ------------------------------------------------------------------ counts

    def reset_counts(self) -> None:
        """Start counting from zero."""
        self.connections = 0
        self.requests: list[Request] = []
        self.turns = 0
        self.bytes_sent = 0
        self.bytes_received = 0

    def commands(self, *names: str) -> int:
        """How many commands of these names clients have sent; of all names, if none is given."""
        wanted = {name.upper().encode() for name in names}
        return sum(1 for request in self.requests if not wanted or request[0].upper() in wanted)

    # ------------------------------------------------------------------ on the loop

    async def _listen(self) -> int:
        if self.port == 0:
            self._gate = asyncio.Event()
            self._gate.set()
        if self._server is None:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self.port, ssl=self._tls
            )
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            server = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        link = Link((reader, writer), server, self._protocol())
        self._links.add(link)
        pumps = [asyncio.ensure_future(pump(link)) for pump in (self._ask, self._answer)]
        self._tasks.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Either side has gone; what the other still has to say reaches nobody.
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._tasks.difference_update(pumps)
            self._links.discard(link)
            link.to_client.close()
            link.to_server.close()

    async def _ask(self, link: Link) -> None:
        while chunk := await link.from_client.read(CHUNK):
            if link.silent:
                continue
            self.bytes_sent += len(chunk)
            self.turns += link.answered
            link.answered = False
            self.requests.extend(link.requests.feed(chunk))
            if self._armed is not None and self._armed in chunk:
                self._armed = None
                link.swallowing = True
            if self._withholding is not None and self._withholding in chunk:
                self._withholding = None
                self._passed_on = asyncio.get_running_loop().create_future()
                link.to_client.transport.abort()
                self.withheld.set()
                if not await self._passed_on:
                    return
            link.to_server.write(chunk)
            await link.to_server.drain()

    async def _end_withholding(self, *, passed_on: bool) -> None:
        # The server may have ended the connection meanwhile.
        if self._passed_on is not None and not self._passed_on.done():
            self._passed_on.set_result(passed_on)

    async def _answer(self, link: Link) -> None:
        while chunk := await link.from_server.read(CHUNK):
            if link.silent:
                continue
            if link.swallowing:
                link.cut()
                self.swallowed.set()
                return
            if any(part in chunk for part in self._keeping_back):
                self._kept_back.append((link, chunk))
                self.kept_back.set()
                continue
            is_heartbeat = getattr(link.requests, "is_heartbeat", None)
            if not self._gate.is_set() and not (is_heartbeat and is_heartbeat(chunk)):
                self.held.set()
                await self._gate.wait()
            if self._delay:
                await asyncio.sleep(self._delay)
            self.bytes_received += len(chunk)
            link.answered = True
            link.to_client.write(chunk)
            await link.to_client.drain()

    async def _deliver(self, times: int) -> None:
        self._keeping_back = ()
        for link, chunk in self._kept_back:
            link.to_client.write(chunk * times)
        self._kept_back.clear()

    async def _set_gate(self, *, opened: bool) -> None:
        self.held.clear()
        if opened:
            self._gate.set()
        else:
            self._gate.clear()

    async def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        await self._cut()

    async def _end(self) -> None:
        self._gate.set()
        await self._refuse()
        # _serve cleans up after its pumps, and must have done so before the loop ends.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others, return_exceptions=True)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=10)

    def close(self) -> None:
        """Close everything."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

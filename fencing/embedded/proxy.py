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
from contextlib import ExitStack
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit, urlunsplit

from fencing.embedded.places import free_port
from fencing.embedded.protocols import (
    HttpRequests,
    PostgresRequests,
    RedisRequests,
    Requests,
    ZooKeeperRequests,
)
from fencing.embedded.traffic import Traffic

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Coroutine
    from types import TracebackType
    from typing import Any, Self

__all__ = ["TcpProxy"]

T = TypeVar("T")


class TcpProxy(Traffic):
    """Listens on a port of 127.0.0.1 and passes everything on to one server.

    Attributes:
        url: The server's address with the proxy's host and port in it.
    """

    def __init__(
        self,
        url: str,
        host: str,
        port: int,
        protocol: Callable[[], Requests] = RedisRequests,
        tls: ssl.SSLContext | None = None,
        *,
        counting: bool = True,
    ) -> None:
        super().__init__(asyncio.new_event_loop(), (host, port), protocol, tls, counting=counting)
        self._kept = ExitStack()
        self.port = free_port(self._kept)
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._run(self._listen())
        parts = urlsplit(url)
        user = parts.netloc.rpartition("@")
        netloc = f"{user[0]}{user[1]}127.0.0.1:{self.port}"
        scheme = parts.scheme if tls is None else "rediss"
        self.url = urlunsplit(parts._replace(scheme=scheme, netloc=netloc))

    @classmethod
    def to(cls, url: str, tls: ssl.SSLContext | None = None, *, counting: bool = True) -> Self:
        """Make a proxy to the server at a redis://, postgresql://, etcd:// or zookeeper:// URL.

        Args:
            url: The address.
            tls: What clients of a Redis are to speak TLS by; the server itself does not.
            counting: Keep the requests, to be counted; not in a run without end.
        """
        parts = urlsplit(url)
        kinds: dict[str, tuple[int, Callable[[], Requests]]] = {
            "redis": (6379, RedisRequests), "rediss": (6379, RedisRequests),
            "etcd": (2379, HttpRequests),
            "zookeeper": (2181, ZooKeeperRequests),
        }  # fmt: skip
        port, protocol = kinds.get(parts.scheme, (5432, PostgresRequests))
        return cls(
            url, parts.hostname or "127.0.0.1", parts.port or port, protocol, tls, counting=counting
        )

    # ------------------------------------------------------------------ commands

    def swallow_reply(self, containing: bytes = b"", *, silently: bool = False) -> None:
        """Lose the reply to the next request.

        The server has executed the request: its reply has arrived here. What it answers to a
        heartbeat meanwhile passes.

        Args:
            containing: Only to a request that contains these bytes.
            silently: Leave the connection as it is, but let nothing pass on it any more; by
                default it is cut.
        """
        self.swallowed.clear()
        self._armed["silence" if silently else "swallow"] = containing

    def withhold_request(self, containing: bytes, *, cut: bool = True) -> None:
        """Keep the next such request; the server waits on for it.

        Args:
            containing: Bytes that the request contains.
            cut: Cut its client off when it has said it all; else it waits for an answer, and what
                it says meanwhile, its end as well, comes after the request.
        """
        self.withheld.clear()
        self._armed["withhold and cut" if cut else "withhold"] = containing

    def pass_withheld_on(self) -> None:
        """Let the server have what was withheld, late, whether or not its client is still there."""
        self._run(self._end_withholding(passed_on=True))

    def drop_withheld(self) -> None:
        """End the server's connection without it."""
        self._run(self._end_withholding(passed_on=False))

    def drop_request(self, containing: bytes, *, times: int = 1) -> None:
        """Lose the next such request, and cut the connection; the server never sees it.

        Args:
            containing: Bytes that the request contains.
            times: How many of them.
        """
        self.dropped.clear()
        self._drops = times
        self._armed["drop"] = containing

    def disarm(self) -> None:
        """Lose and withhold no request or reply that has not come yet."""
        self._armed.clear()

    def keep_back(self, *containing: bytes) -> None:
        """From now on keep back what the server says with any of these in it, and nothing else."""
        self.kept_back.clear()
        self._keeping_back = containing

    def deliver(self, times: int = 1) -> None:
        """Deliver what was kept back, so many times (0 loses it), and keep back no more."""
        self._run(self._deliver(times))

    def delay(self, replies: float, *, requests: float = 0.0) -> None:
        """Deliver late from now on; 0 ends it.

        Args:
            replies: How much later every reply is delivered, in seconds.
            requests: How much later every request is.
        """
        self._delays = (requests, replies)

    def hold(self) -> None:
        """Hold back all replies until `release`; not those to a heartbeat."""
        self._run(self._hold(holding=True))

    def release(self) -> None:
        """Deliver what has been held back, and all that follows."""
        self._run(self._hold(holding=False))

    def partition(self) -> None:
        """Let nothing pass either way, on new connections neither, until `heal`.

        Nobody is told: no connection is closed, and new ones are accepted and not answered. What
        is said meanwhile is not lost: as with TCP, it arrives late, even if who said it has gone.
        """
        self._run(self._part(apart=True))

    def heal(self) -> None:
        """End a partition: what was said during it is delivered."""
        self._run(self._part(apart=False))

    def silence(self) -> None:
        """Let nothing pass on any of the connections there are, as a firewall that dropped them.

        It is lost for good, and neither side hears of the other's end. New connections are served.
        """
        for link in list(self._links):
            link.silent = True

    def cut(self) -> None:
        """Close all connections."""
        self._run(self._cut())

    def refuse(self) -> None:
        """Close all connections and refuse new ones, as if there were no server."""
        self._run(self._refuse())

    def accept(self) -> None:
        """Accept connections again, on the same port."""
        self._run(self._listen())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:  # it was closed
            work.close()
            raise
        return future.result(timeout=10)

    def close(self) -> None:
        """Close everything."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._kept.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

"""What passes through a proxy, and what becomes of it: everything here runs on its event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from fencing.embedded.linking import Link

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from fencing.embedded.protocols import Request, Requests

__all__ = ["Traffic"]


class Traffic:
    """Passes on what clients and their server say to each other, unless it is told otherwise.

    Attributes:
        port: The TCP port that clients connect to.
        connections: How many connections clients have made.
        requests: What clients have sent: per command of Redis its words, per message of PostgreSQL
            its type and, where it has one, its SQL, per request to etcd its path and its body.
        turns: How often a client has spoken after it was answered: round trips, unless it speaks
            before its answer has come.
        bytes_sent: How many bytes clients have sent.
        bytes_received: How many bytes have gone back to clients.
        swallowed: Set when a reply has been swallowed.
        withheld: Set when the whole of a request has been withheld.
        dropped: Set when requests have been dropped, all that were to be.
        held: Set when a reply is held back.
        kept_back: Set when something was kept back.

    Args:
        loop: Where it runs.
        target: The server's host and port.
        protocol: Reads what a client asks.
        tls: What clients are to speak TLS by; the server itself does not.
        counting: Whether to keep the requests.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        target: tuple[str, int],
        protocol: Callable[[], Requests],
        tls: ssl.SSLContext | None,
        *,
        counting: bool,
    ) -> None:
        self.port = 0
        self._loop = loop
        self._tls = tls
        self._target = target
        self._protocol = protocol
        self._counting = counting
        self._armed: dict[str, bytes] = {}
        self._drops = 0
        self._withheld: list[Link] = []
        self._keeping_back: tuple[bytes, ...] = ()
        self._kept_back: list[tuple[Link, bytes]] = []
        self._delays = (0.0, 0.0)
        self._holding = self._apart = self._refusing = False
        self._links: set[Link] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.swallowed = threading.Event()
        self.withheld = threading.Event()
        self.dropped = threading.Event()
        self.held = threading.Event()
        self.kept_back = threading.Event()
        self.reset_counts()

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

    async def _listen(self) -> None:
        self._refusing = False
        if self._server is None:
            self._server = await self._loop.create_server(
                self._link, "127.0.0.1", self.port, ssl=self._tls
            )

    def _link(self) -> asyncio.Protocol:
        return Link(self, self._protocol(), self._loop).client

    def opened(self, link: Link) -> None:
        """A client has connected."""
        if self._refusing:  # it was accepted just before
            link.without_server(told=True)
            return
        self.connections += 1
        self._links.add(link)
        if self._holding:
            link.answers.shut("held")
        if self._apart:
            link.asks.shut("apart")
            link.answers.shut("apart")
        task = self._loop.create_task(self._connect(link))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, link: Link) -> None:
        try:
            await self._loop.create_connection(lambda: link.server, *self._target)
        except OSError:
            link.without_server(told=not self._apart)

    def asked(self, link: Link, data: bytes) -> None:
        """A client has said something."""
        if link.silent:
            return
        self.bytes_sent += len(data)
        self.turns += link.answered
        link.answered = False
        unfinished = link.requests.unfinished  # a request may come in several packets
        requests = list(link.requests.feed(data))
        if self._counting:
            self.requests.extend(requests)
        for what, containing in list(self._armed.items()):
            said = (unfinished + data, *(part for request in requests for part in request))
            if any(containing in part for part in said):
                if what not in self._armed:  # disarmed just now
                    continue
                if what == "drop":
                    self._drops -= 1
                    link.cut()
                    if not self._drops:
                        self._armed.pop(what, None)
                        self.dropped.set()
                    return
                self._armed.pop(what, None)
                if what in ("swallow", "silence"):
                    link.swallowing = what
                else:
                    link.withholding = what
                    link.asks.shut("withheld")
                    self._withheld.append(link)
        link.asks.send(data, self._delays[0])
        # Its end may come in a packet of its own, and a client that is cut off before has not said
        # it: half a request does nothing, however late it is delivered.
        if link.withholding is not None and link.requests.whole:
            self._all_withheld(link)

    def _all_withheld(self, link: Link) -> None:
        if link.withholding == "withhold and cut":
            link.client.abort()
        link.withholding = None
        self.withheld.set()

    async def _end_withholding(self, *, passed_on: bool) -> None:
        for link in self._withheld:
            link.withholding = None
            if not passed_on:
                link.cut()
            link.asks.open("withheld")
        self._withheld.clear()

    def answered(self, link: Link, data: bytes) -> None:
        """A server has said something."""
        if link.silent:
            return
        if link.swallowing is not None and not link.requests.is_heartbeat(data):
            if link.swallowing == "silence":
                link.silent = True
            else:
                link.cut()
            self.swallowed.set()
            return
        if self._keeping_back and any(part in data for part in self._keeping_back):
            self._kept_back.append((link, data))
            self.kept_back.set()
            return
        self.bytes_received += len(data)
        link.answered = True
        if self._holding:
            if link.answers.idle and link.requests.is_heartbeat(data):
                link.client.write(data)
                return
            self.held.set()
        link.answers.send(data, self._delays[1])

    def closed(self, link: Link) -> None:
        """Both of a link's connections have ended."""
        self._links.discard(link)

    async def _deliver(self, times: int) -> None:
        self._keeping_back = ()
        for link, chunk in self._kept_back:
            link.client.write(chunk * times)
        self._kept_back.clear()

    async def _hold(self, *, holding: bool) -> None:
        self.held.clear()
        self._holding = holding
        for link in list(self._links):
            (link.answers.shut if holding else link.answers.open)("held")

    async def _part(self, *, apart: bool) -> None:
        self._apart = apart
        for link in list(self._links):
            for way in (link.asks, link.answers):
                (way.shut if apart else way.open)("apart")

    async def _cut(self) -> None:
        for link in list(self._links):
            link.cut()

    async def _refuse(self) -> None:
        self._refusing = True
        server, self._server = self._server, None
        if server is not None:
            for listening in server.sockets:
                self._loop.remove_reader(listening.fileno())
            # Those accepted in this turn are attached to it in the next, or never closed if it is.
            await asyncio.sleep(0)
            server.close()
        await self._cut()

    async def _end(self) -> None:
        await self._refuse()
        # Who was accepted just before is connected two turns later, or still greets in TLS.
        for _ in range(2):
            await asyncio.sleep(0)
        greeting = asyncio.all_tasks() - {asyncio.current_task(), *self._connecting}
        for task in greeting:
            task.cancel()
        await asyncio.gather(*self._connecting, *greeting, return_exceptions=True)
        while self._links:  # transports close a turn after they were told
            await self._cut()
            await asyncio.sleep(0)
        await asyncio.sleep(0)  # those that are no links, too

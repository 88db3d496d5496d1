"""One client's connection through the proxy: two transports, and two ways that can be shut.

What is said one way is delivered in its order. While a way is shut, for whatever reasons, it is
kept; so is the end of a connection. It all runs on the proxy's event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    from fencing.embedded.protocols import Requests

    class Listener(Protocol):
        """Who hears what is said on a link, and decides what becomes of it."""

        def opened(self, link: Link) -> None:
            """A client has connected."""

        def asked(self, link: Link, data: bytes) -> None:
            """The client has said something."""

        def answered(self, link: Link, data: bytes) -> None:
            """The server has said something."""

        def closed(self, link: Link) -> None:
            """Both connections have ended."""


__all__ = ["Link", "Side", "Way"]

CONNECTING = "connecting"


class Side(asyncio.Protocol):
    """One of a link's two connections.

    Args:
        made: Told that it is there.
        heard: Takes what it says.
        lost: Told of its end.
    """

    def __init__(
        self,
        made: Callable[[], None],
        heard: Callable[[bytes], None],
        lost: Callable[[], None],
    ) -> None:
        self.transport: asyncio.Transport | None = None
        self.ended = False
        self.peer: Side | None = None
        self.data_received = heard  # type: ignore[method-assign,assignment]  # saves a call
        self._made = made
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that it is there."""
        self.transport = cast("asyncio.Transport", transport)
        self._made()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - an end is an end
        """Note that it is gone."""
        self.ended = True
        self._lost()

    def pause_writing(self) -> None:
        """It does not keep up: let the other wait."""
        if self.peer and self.peer.transport and not self.peer.transport.is_closing():
            self.peer.transport.pause_reading()

    def resume_writing(self) -> None:
        """It has caught up."""
        if self.peer and self.peer.transport and not self.peer.transport.is_closing():
            self.peer.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send; to nobody if it has ended."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def close(self) -> None:
        """End it when all that was written has been sent."""
        if self.transport is not None:
            self.transport.close()

    def abort(self) -> None:
        """End it at once."""
        if self.transport is not None:
            self.transport.abort()


class Way:
    """What is said to one side, in order, with a delay or held while the way is shut.

    Args:
        target: The side.
        loop: The proxy's event loop.
    """

    def __init__(self, target: Side, loop: asyncio.AbstractEventLoop) -> None:
        self.target = target
        self.reasons: set[str] = set()
        self._loop = loop
        self._kept: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing is kept."""
        return not self._kept

    def send(self, data: bytes | None, delay: float = 0.0) -> None:
        """Deliver, in turn.

        Args:
            data: What; None is the end of the connection.
            delay: How much later, in seconds.
        """
        if self._kept or self.reasons or delay:
            self._kept.append((self._loop.time() + delay, data))
            self._flush()
        else:
            self._deliver(data)

    def shut(self, reason: str) -> None:
        """Keep what comes from now on, until this reason and all others are gone."""
        self.reasons.add(reason)

    def open(self, reason: str) -> None:
        """Take a reason away; with the last one, deliver what was kept."""
        self.reasons.discard(reason)
        self._flush()

    def forget(self) -> None:
        """Lose what is kept."""
        self._kept.clear()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._kept and not self.reasons:
            due, data = self._kept[0]
            left = due - self._loop.time()
            if left > 0:
                self._timer = self._loop.call_later(left, self._flush)
                return
            self._kept.popleft()
            self._deliver(data)

    def _deliver(self, data: bytes | None) -> None:
        if data is None:
            self.target.close()
        else:
            self.target.write(data)


class Link:
    """One client's connection, and ours to the server on its behalf.

    Args:
        listener: Who decides what becomes of what is said.
        requests: Reads what the client asks.
        loop: The proxy's event loop.

    Attributes:
        silent: Nothing passes any more, not even the end of a connection.
        swallowing: How the next answer is lost; None if it is not.
        withholding: What becomes of the client when the whole of a request that is withheld has
            come; None if that is not waited for.
        answered: Whether the server has spoken since the client did.
        asks: The way to the server.
        answers: The way to the client.
    """

    def __init__(
        self, listener: Listener, requests: Requests, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.requests = requests
        self.silent = False
        self.swallowing: str | None = None
        self.withholding: str | None = None
        self.answered = True
        self._listener = listener
        self.client = Side(
            lambda: listener.opened(self),
            lambda data: listener.asked(self, data),
            lambda: self._lost(self.answers, self.asks),
        )
        self.server = Side(
            lambda: self.asks.open(CONNECTING),
            lambda data: listener.answered(self, data),
            lambda: self._lost(self.asks, self.answers),
        )
        self.client.peer, self.server.peer = self.server, self.client
        self.asks, self.answers = Way(self.server, loop), Way(self.client, loop)
        self.asks.shut(CONNECTING)

    def cut(self) -> None:
        """Close both connections at once."""
        for way, side in ((self.asks, self.server), (self.answers, self.client)):
            way.forget()
            side.abort()

    def without_server(self, *, told: bool) -> None:
        """There is no server to connect to.

        Args:
            told: Whether the client is told at once, or in its turn.
        """
        self.server.ended = True
        if self.client.ended:
            self._listener.closed(self)
        elif told:
            self.client.abort()
        else:
            self.answers.send(None)

    def _lost(self, to_it: Way, from_it: Way) -> None:
        """One side has ended: what it has said still arrives, and then its end."""
        to_it.forget()
        if self.client.ended and self.server.ended:
            self._listener.closed(self)
        elif not self.silent:
            from_it.send(None)

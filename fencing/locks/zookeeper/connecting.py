"""How kazoo connects: in bounded time, and with its failures told."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CONNECT_SECONDS", "Client", "Handler", "Result", "State"]

# kazoo is not annotated, and ships no stubs: what mypy could be told of these it could not check.
Client: TypeAlias = Any
"""A ``KazooClient``."""
State: TypeAlias = Any
"""A ``KazooState``: a plain string in kazoo."""
Result: TypeAlias = Any
"""An ``IAsyncResult`` of kazoo's."""
Kazoo: TypeAlias = Any
"""Whatever kazoo passes to a method of its handler, and takes from it."""

CONNECT_SECONDS = 2.0
"""How long one server may take to accept a connection, and then to answer on it, before the next
is tried, in seconds. kazoo would wait for as long as a session lasts."""

FIRST_SECONDS = 0.5
"""How long the first one may take to answer, in seconds; each after it may take twice as long, up
to `CONNECT_SECONDS`. A server that is starting accepts connections to which it never says anything,
and whoever could not wait to come back is on one of those."""


class UnreachableError(OSError):
    """A server to which no connection could be made."""

    def __init__(self, place: str, error: BaseException) -> None:
        super().__init__(f"{place}: {str(error) or type(error).__name__}")
        self.__cause__ = error


def _place_in(*, address: tuple[Any, ...], hostname: str | None = None, **_: object) -> str:
    """What a connection was to be made to, by the name that it was given."""
    host = hostname or address[0]
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


class Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo ships no annotations, so the base is Any
    """Bounds the making of connections, and tells of failures, which kazoo keeps to itself.

    Args:
        failed: Called when no connection could be made.
        not_let_in: Called when one was made, and the server has ended it, or said nothing for too
            long, instead of giving a session; before the next is made.
        connected: Says whether a server has answered on the present one.
    """

    def __init__(
        self,
        failed: Callable[[BaseException], object],
        not_let_in: Callable[[], object],
        connected: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._failed = failed
        self._not_let_in = not_let_in
        self._connected = connected
        self._unanswered = False
        self._patience = FIRST_SECONDS

    def changed(self, state: State) -> None:
        """A listener for the client: with these a server has answered."""
        if state in (KazooState.CONNECTED, KazooState.LOST):
            self._unanswered = False
            self._patience = FIRST_SECONDS

    def select(self, *sockets: Kazoo) -> Kazoo:
        """As kazoo has it, but not for so long while no server has answered."""
        *watched, timeout = sockets
        if timeout and not self._connected():
            timeout = min(timeout, self._patience)
        return super().select(*watched, timeout)

    def create_connection(self, *args: Kazoo, **kwargs: Kazoo) -> Kazoo:
        """As kazoo has it, but within `CONNECT_SECONDS`, and what comes of it is told."""
        if self._unanswered:
            self._unanswered = False
            self._patience = min(2 * self._patience, CONNECT_SECONDS)
            self._not_let_in()
        if kwargs.get("timeout"):
            kwargs["timeout"] = min(kwargs["timeout"], CONNECT_SECONDS)
        try:
            connection = super().create_connection(*args, **kwargs)
        except Exception as error:
            self._failed(UnreachableError(_place_in(**kwargs), error))
            raise
        self._unanswered = True
        return connection

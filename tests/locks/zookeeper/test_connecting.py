"""How long servers may take to let us in."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import KazooState

from fencing.locks.zookeeper.connecting import Handler

if TYPE_CHECKING:
    from collections.abc import Iterator


class Connecting:
    """A handler as kazoo uses it, and what it does with it."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.address = address
        self.is_connected = False
        self.told: list[str] = []
        self.handler = Handler(
            lambda error: self.told.append(str(error)),
            lambda: self.told.append("not let in"),
            lambda: self.is_connected,
        )

    def connect(self) -> None:
        self.handler.create_connection(
            address=self.address, hostname="localhost", timeout=60.0
        ).close()

    def waits(self, seconds: float) -> float:
        """How long a call really waits that is to wait for so long."""
        waited: float = self.handler.select([], [], [], seconds)
        return waited


@pytest.fixture
def connecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connecting]:
    def timeout_of(_handler: Any, *arguments: Any) -> Any:
        return arguments[-1]

    monkeypatch.setattr(SequentialThreadingHandler, "select", timeout_of)
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Connecting(server.getsockname())


def test_each_server_that_says_nothing_gives_the_next_more_time(connecting: Connecting) -> None:
    waited = []
    for _ in range(4):
        connecting.connect()
        waited.append(connecting.waits(10.0))
    assert waited == [0.5, 1.0, 2.0, 2.0]
    assert connecting.told == ["not let in"] * 3
    assert connecting.waits(0.2) == 0.2
    assert connecting.waits(0) == 0


@pytest.mark.parametrize("state", [KazooState.CONNECTED, KazooState.LOST])
def test_a_server_that_has_answered_has_no_part_in_what_comes_later(
    connecting: Connecting, state: str
) -> None:
    connecting.connect()
    connecting.connect()
    connecting.handler.changed(state)
    connecting.connect()
    assert connecting.told == ["not let in"]
    assert connecting.waits(10.0) == 0.5


def test_a_lost_connection_is_no_answer(connecting: Connecting) -> None:
    connecting.connect()
    connecting.handler.changed(KazooState.SUSPENDED)
    connecting.connect()
    assert connecting.told == ["not let in"]


def test_who_has_a_session_waits_as_kazoo_will_have_it(connecting: Connecting) -> None:
    connecting.connect()
    connecting.is_connected = True
    assert connecting.waits(10.0) == 10.0


def test_a_connection_that_was_refused_has_said_so_itself(connecting: Connecting) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        connecting.address = server.getsockname()
    for _ in range(2):
        with pytest.raises(OSError, match="refused"):
            connecting.connect()
    assert len(connecting.told) == 2
    assert all("localhost:" in each and "refused" in each for each in connecting.told)
    assert connecting.waits(10.0) == 0.5

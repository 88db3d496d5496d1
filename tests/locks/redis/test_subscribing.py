"""Listening in asyncio, on a connection that answers exactly when the test wants it to."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fencing.locks.lines import AsyncBox
from fencing.locks.redis import subscribing
from fencing.locks.redis.subscribing import AsyncSubscriber
from fencing.locks.redis.waiting import LOST, READY, Audience

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HOLDER = "f" * 32
SUBSCRIBED = b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"


class Transport(asyncio.Transport):
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol: Any = protocol

    def get_protocol(self) -> Any:
        return SimpleNamespace(connection_lost=lambda _: None)


class Connection:
    """One of redis-py's, on which the answer to a command is there before it was sent."""

    def __init__(self, answers: dict[str, bytes]) -> None:
        self._writer = SimpleNamespace(transport=Transport())
        self._answers = answers
        self.sent: asyncio.Queue[str] = asyncio.Queue()

    async def send_command(self, command: str, *_: str, **__: Any) -> None:
        self.sent.put_nowait(command)
        self.come(self._answers[command])

    def come(self, data: bytes) -> None:
        self._writer.transport.protocol.data_received(data)

    async def disconnect(self, *, nowait: bool) -> None:
        assert nowait


@pytest.fixture
def connection() -> Connection:
    return Connection({"SUBSCRIBE": SUBSCRIBED, "PING": b"+PONG\r\n"})


@contextlib.asynccontextmanager
async def listening(
    connection: Connection, box: AsyncBox, strays: list[str]
) -> AsyncIterator[AsyncSubscriber[AsyncBox]]:
    async def connect(_: float) -> Connection:
        return connection

    subscriber: AsyncSubscriber[AsyncBox] = AsyncSubscriber(connect, "c", strays.append)
    subscriber.audience.add(HOLDER, box)
    try:
        yield subscriber
    finally:
        await subscriber.stop()


async def test_an_answer_that_comes_while_it_is_tested_counts(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = itertools.count()
    monkeypatch.setattr(subscribing, "now", lambda: next(moments) / 1000)  # no two are the same
    monkeypatch.setattr(subscribing, "HEARTBEAT_SECONDS", 0.005)
    box = AsyncBox()
    async with listening(connection, box, []), asyncio.timeout(20):
        sent = [await connection.sent.get() for _ in range(4)]
        assert sent == ["SUBSCRIBE", "PING", "PING", "PING"]
        assert [await box.get(0.0) for _ in range(2)] == [READY, None]


async def test_what_comes_after_the_end_is_nobody_s(
    connection: Connection,
) -> None:
    box = AsyncBox()
    strays: list[str] = []
    async with listening(connection, box, strays) as subscriber:
        assert await box.get(20) == READY
    connection.come(HOLDER.encode() + b" 7\r\n")
    assert not subscriber.audience.listens
    assert subscriber.audience.over
    assert strays == []
    # Who waited asks at once, and is told by the script what he was handed.
    assert [await box.get(0.0) for _ in range(2)] == [LOST, None]


class TestAudience:
    def test_does_not_begin_again(self) -> None:
        audience: Audience[AsyncBox] = Audience()
        audience.begin()
        audience.end()
        audience.begin()
        assert not audience.listens

    async def test_who_comes_after_the_end_is_told(self) -> None:
        audience: Audience[AsyncBox] = Audience()
        audience.end()
        box = AsyncBox()
        audience.add(HOLDER, box)
        assert await box.get(0.0) == LOST

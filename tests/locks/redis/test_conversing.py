"""Conversations in asyncio: what comes is heard by who has asked, and nobody waits too long."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any, ClassVar

import pytest
import redis
import redis.asyncio
from redis.asyncio.connection import parse_url

from fencing.clock import now
from fencing.locks.redis import AsyncRedisLockService, conversing
from fencing.locks.redis.bounded import async_bounded
from fencing.locks.redis.conversing import Conversation
from fencing.locks.redis.direct import AsyncDirect
from fencing.locks.redis.resp import MISSING, Answers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from fencing.embedded.proxy import TcpProxy

LONG = 20.0
"""How long a test waits for what is to happen much sooner, in seconds."""

OK = b"+OK\r\n"
ENOUGH_TO_FILL_ANY_BUFFER = b"." * 50_000_000
"""More than the system keeps for who does not read."""


class Before(asyncio.Protocol):
    """Stands for the protocol of redis-py's streams."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def data_received(self, data: bytes) -> None:
        self.heard.append(data)

    def eof_received(self) -> bool:
        self.heard.append("eof")
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.heard.append(exc)


class Transport:
    def __init__(self) -> None:
        self.protocol: Any = Before()
        self.said: list[bytes] = []

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol

    def write(self, data: bytes) -> None:
        self.said.append(data)

    def is_closing(self) -> bool:
        return False


class Timer:
    def __init__(self, at: float, callback: Callable[[], object]) -> None:
        self.at = at
        self.callback = callback
        self.is_set = True

    def cancel(self) -> None:
        self.is_set = False


class Clock:
    """A clock that is set by hand, and the timers that were set by it."""

    def __init__(self) -> None:
        self.at = 100.0
        self.timers: list[Timer] = []

    def call_later(self, delay: float, callback: Callable[[], object]) -> Timer:
        self.timers.append(Timer(self.at + delay, callback))
        return self.timers[-1]

    def set_to(self, at: float) -> None:
        self.at = at
        for timer in self.running:
            if timer.at <= at:
                timer.cancel()
                timer.callback()

    @property
    def running(self) -> list[Timer]:
        return [timer for timer in self.timers if timer.is_set]


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(conversing, "now", lambda: clock.at)
    monkeypatch.setattr(asyncio.get_running_loop(), "call_later", clock.call_later)
    yield clock
    monkeypatch.undo()


class Talk:
    """A conversation on a transport of ours."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.before = self.transport.protocol
        self.answers = Answers(redis.ResponseError)
        self.conversation = Conversation(self.transport, self.answers)

    def hear(self, data: bytes) -> None:
        self.transport.protocol.data_received(data)


@pytest.fixture
async def talk() -> Talk:
    return Talk()


class TestWhoHears:
    async def test_until_something_is_asked_it_is_redis_py(self, talk: Talk) -> None:
        talk.hear(OK)
        assert talk.before.heard == [OK]
        assert not talk.answers.unread

    async def test_from_then_on_it_is_us(self, talk: Talk) -> None:
        talk.conversation.say(b"PING\r\n")
        talk.hear(OK)
        assert talk.transport.said == [b"PING\r\n"]
        assert talk.before.heard == []
        assert talk.answers.next() == b"OK"

    async def test_in_a_pause_it_is_redis_py_again(self, talk: Talk) -> None:
        talk.conversation.say(b"PING\r\n")
        talk.conversation.pause()
        talk.hear(OK)
        assert talk.before.heard == [OK]
        talk.conversation.say(b"PING\r\n")
        talk.hear(OK)
        assert talk.before.heard == [OK]
        assert talk.answers.next() == b"OK"

    async def test_of_the_end_it_is_both(self, talk: Talk) -> None:
        waiting = talk.conversation.answer()
        assert talk.transport.protocol.eof_received() is True
        talk.transport.protocol.connection_lost(None)
        assert talk.before.heard == ["eof", None]
        with pytest.raises(ConnectionResetError):
            await waiting


class TestWhatIsHeard:
    async def test_whoever_waits_is_woken_when_all_of_it_has_come(self, talk: Talk) -> None:
        talk.conversation.say(b"PING\r\n")
        waiting = talk.conversation.answer()
        talk.hear(OK[:2])
        assert not waiting.done()
        talk.hear(OK[2:])
        assert await waiting == b"OK"
        assert not talk.answers.unread

    async def test_what_comes_along_with_it_is_the_next_answer(self, talk: Talk) -> None:
        talk.conversation.say(b"PING\r\nINCR k\r\n")
        waiting = talk.conversation.answer()
        talk.hear(OK + b":1\r\n")
        talk.hear(b":2\r\n")
        assert await waiting == b"OK"
        assert [talk.answers.next(), talk.answers.next()] == [1, 2]

    async def test_what_is_no_answer_is_told_to_whoever_waits(self, talk: Talk) -> None:
        talk.conversation.say(b"PING\r\n")
        waiting = talk.conversation.answer()
        talk.hear(b"HTTP/1.1 400 Bad Request\r\n")
        with pytest.raises(redis.exceptions.InvalidResponse):
            await waiting


class TestTheEnd:
    async def test_what_it_ended_by_is_what_is_raised(self, talk: Talk) -> None:
        waiting = talk.conversation.answer()
        talk.transport.protocol.connection_lost(BrokenPipeError())
        with pytest.raises(BrokenPipeError):
            await waiting
        assert talk.conversation.is_over()

    async def test_who_comes_later_does_not_wait(self, talk: Talk) -> None:
        talk.transport.protocol.eof_received()
        assert talk.conversation.is_over()
        with pytest.raises(ConnectionResetError):
            talk.conversation.answer()

    async def test_what_came_before_is_heard(self, talk: Talk) -> None:
        talk.conversation.say(b"PING\r\n")
        talk.hear(OK)
        talk.transport.protocol.eof_received()
        assert talk.answers.next() == b"OK"

    async def test_who_was_cancelled_meanwhile_does_not_mind(self, talk: Talk) -> None:
        talk.conversation.say(b"PING\r\n")
        for event in (lambda: talk.hear(OK), talk.transport.protocol.eof_received):
            talk.conversation.answer().cancel()
            event()
        assert talk.conversation.is_over()

    async def test_no_timer_is_left(self, clock: Clock) -> None:
        talk = Talk()
        talk.conversation.until = 102.0
        talk.conversation.answer()
        talk.transport.protocol.connection_lost(None)
        assert clock.running == []


class TestTheTimeLimit:
    async def test_who_hears_nothing_is_told_when_it_is_time(self, clock: Clock) -> None:
        talk = Talk()
        talk.conversation.until = 102.0
        waiting = talk.conversation.answer()
        clock.set_to(101.9)
        assert not waiting.done()
        clock.set_to(102.0)
        with pytest.raises(TimeoutError):
            await waiting

    async def test_many_calls_that_end_in_time_have_one_timer(self, clock: Clock) -> None:
        talk = Talk()
        for n in range(10):
            clock.set_to(100.0 + n / 10)
            talk.conversation.until = clock.at + 2.0
            waiting = talk.conversation.answer()
            talk.conversation.say(b"")
            talk.hear(OK)
            await waiting
        assert len(clock.timers) == 1
        clock.set_to(102.0)
        assert clock.running == []  # while nobody waits

    async def test_the_timer_of_an_earlier_call_does_not_end_a_later_one(
        self, clock: Clock
    ) -> None:
        talk = Talk()
        for until in (102.0, 103.0):
            talk.conversation.until = until
            waiting = talk.conversation.answer()
        clock.set_to(102.5)
        assert not waiting.done()
        clock.set_to(103.0)
        with pytest.raises(TimeoutError):
            await waiting

    async def test_a_call_that_ends_sooner_than_the_one_before_is_told_in_time(
        self, clock: Clock
    ) -> None:
        talk = Talk()
        for until in (110.0, 102.0):
            talk.conversation.until = until
            waiting = talk.conversation.answer()
        clock.set_to(102.0)
        with pytest.raises(TimeoutError):
            await waiting
        assert clock.running == []

    async def test_what_comes_too_late_wakes_nobody(self, clock: Clock) -> None:
        talk = Talk()
        talk.conversation.say(b"PING\r\n")
        talk.conversation.until = 101.0
        waiting = talk.conversation.answer()
        clock.set_to(102.0)
        talk.hear(OK)
        with pytest.raises(TimeoutError):
            await waiting


def connection_to(url: str, **settings: Any) -> Any:
    """A connection of a lock service that does without redis-py's greeting."""

    def greet(connection: Any) -> None:
        connection._parser.on_connect(connection)

    kind = async_bounded(redis.asyncio.Connection)
    address = {name: value for name, value in parse_url(url).items() if name in ("host", "port")}
    return kind(**address, redis_connect_func=greet, **settings)


@pytest.fixture
async def silent_url() -> AsyncIterator[str]:
    """A server that reads nothing."""
    come: list[asyncio.StreamWriter] = []

    def accept(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]  # typed as one for writing only
        come.append(writer)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for each in come:
            each.transport.abort()


class TestConnections:
    async def test_who_cannot_even_send_is_told_in_time(self, silent_url: str) -> None:
        connection = connection_to(silent_url)
        await connection.connect()
        connection.limit(now() + 0.05)
        with pytest.raises(redis.TimeoutError):
            await connection.ask(ENOUGH_TO_FILL_ANY_BUFFER)
        connection._writer.transport.abort()
        await connection.disconnect(nowait=True)

    async def test_the_client_s_time_out_holds_if_it_is_shorter(self, silent_url: str) -> None:
        connection = connection_to(silent_url, socket_timeout=5.0)
        await connection.connect()
        at = now()
        assert connection.limit(at + 2.0) == at + 2.0
        assert at + 5.0 <= connection.limit(at + LONG) < at + LONG
        assert connection.until == connection._conversation.until
        with pytest.raises(redis.TimeoutError, match="time is up"):
            connection.limit(at)
        await connection.disconnect(nowait=True)

    async def test_one_that_was_closed_answers_nothing(self, silent_url: str) -> None:
        # As a failed look at its health leaves it to who has looked for another server meanwhile.
        connection = connection_to(silent_url)
        await connection.connect()
        connection.limit(now() + LONG)
        await connection.disconnect(nowait=True)
        with pytest.raises(redis.ConnectionError):
            await connection.answer()

    async def test_the_event_loop_does_not_keep_one_that_was_forgotten(
        self, redis_url: str
    ) -> None:
        forgotten = [connection_to(redis_url)]
        await forgotten[0].connect()
        forgotten[0].limit(now() + LONG)
        assert await forgotten[0].ask(b"PING\r\n") == b"PONG"
        with pytest.warns(ResourceWarning, match="unclosed"):
            forgotten.clear()
        await asyncio.sleep(0)  # the loop closes its socket a turn later

    async def test_redis_py_looks_after_its_health_between_two_requests(
        self, redis_url: str
    ) -> None:
        connection = connection_to(redis_url, health_check_interval=0.001)
        await connection.connect()
        for _ in range(3):
            connection.next_health_check = -math.inf
            connection.limit(now() + LONG)
            assert await connection.ask(b"*1\r\n$4\r\nTIME\r\n") is not MISSING
            assert connection.next_health_check > 0  # redis-py has heard a PONG
        await connection.disconnect()

    async def test_a_look_at_its_health_is_over_in_time(self, silent_url: str) -> None:
        connection = connection_to(silent_url, health_check_interval=0.001)
        await connection.connect()
        connection.limit(now() + 0.05)
        with pytest.raises(TimeoutError):
            await connection.ask(b"PING\r\n")
        await connection.disconnect(nowait=True)


async def test_when_an_answer_has_come_silence_has_no_limit_of_its_own_any_more() -> None:
    class Connection:
        until = math.inf
        limits: ClassVar[list[float]] = []

        async def ask(self, data: bytes) -> bytes:
            self.limits.append(self.until)
            return data

    connection = Connection()
    until = now() + LONG
    answer = await AsyncDirect._answer_looking(connection, b"answer", until, asyncio.sleep)
    assert answer == b"answer"
    assert connection.limits[0] < connection.until == until


async def test_one_that_said_something_unasked_is_opened_anew(
    proxy: TcpProxy, redis_namespace: str
) -> None:
    async with AsyncRedisLockService.from_url(proxy.url, namespace=redis_namespace) as locks:
        lease = await locks.acquire("r", ttl=60)
        way: Any = locks._redis._sibling._way
        assert isinstance(way, AsyncDirect)
        (connection,) = way._stack._idle
        proxy.reset_counts()
        connection._writer.transport.get_protocol().data_received(OK)
        await lease.renew()
        assert proxy.connections == 1
        await lease.release()

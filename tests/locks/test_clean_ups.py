"""What was cancelled or interrupted is cleaned up after, also if that is not heard at once.

First step by step, without any server; then with all of them, whose connection is lost just then.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from fencing import (
    AsyncEtcdLockService,
    AsyncPostgresLockService,
    AsyncRedisLockService,
    AsyncRedlockService,
    EtcdLockService,
    PostgresLockService,
    RedisLockService,
    RedlockService,
)
from fencing.embedded import ValkeyProcess
from fencing.embedded.proxy import TcpProxy
from fencing.lease import Lease
from fencing.locks import asking
from fencing.locks.asking import CLEAN_UP_SECONDS, RETRY_SECONDS, Pause, Trouble
from fencing.locks.etcd import acquiring as of_etcd
from fencing.locks.etcd import steps as lease_of_etcd
from fencing.locks.etcd.answers import Reply as EtcdReply
from fencing.locks.etcd.keys import Keys
from fencing.locks.postgres import acquiring as of_postgres
from fencing.locks.postgres import steps as lease_of_postgres
from fencing.locks.postgres.asking import Reply as PostgresReply
from fencing.locks.redis import together
from fencing.locks.redis.acquiring import Acquiring
from fencing.locks.redis.asking import Ask as RedisAsk
from fencing.locks.redis.asking import Reply as RedisReply
from fencing.locks.redis.steps import Releasing
from fencing.locks.redlock import acquiring as of_redlock
from fencing.locks.redlock import steps as lease_of_redlock
from fencing.locks.redlock.asking import AskNodes, Quorum, Replies
from fencing.request import AcquireRequest
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

SECONDS = 20
HOLDER = "ab" * 16
KEYS = Keys("ns")
QUORUM = Quorum(3, 0.25)


# Step by step


def request(resource: str = "r") -> AcquireRequest:
    return AcquireRequest(resource=resource, ttl=60.0)


def lease() -> Lease:
    nobody: Any = None  # is asked
    return Lease(nobody, resource="r", token=7, holder=HOLDER, owner="me", ttl=60.0, asked_at=0.0)


CALLS: dict[str, Callable[[], Generator[Any, Any, Any]]] = {
    "redis": lambda: Acquiring(request(), holder=HOLDER, started_at=0.0).go_on(),
    "redis, released": lambda: Releasing(lease(), started_at=0.0).go_on(),
    "etcd": lambda: of_etcd.acquire(KEYS, request(), holder=HOLDER, started_at=0.0),
    "etcd, released": lambda: lease_of_etcd.release(KEYS, lease(), started_at=0.0),
    "postgres": lambda: of_postgres.acquire(
        request(), holder=HOLDER, started_at=0.0, guarded=False
    ),
    "postgres, released": lambda: lease_of_postgres.release(lease(), started_at=0.0),
    "redlock": lambda: of_redlock.acquire(request(), holder=HOLDER, quorum=QUORUM, started_at=0.0),
    "redlock, released": lambda: lease_of_redlock.release(lease(), quorum=QUORUM, started_at=0.0),
}
SEVERAL: dict[str, Callable[[], Generator[Any, Any, Any]]] = {
    "redis": lambda: together.acquire_all(
        [request("a"), request("b")], holders=[HOLDER, HOLDER], started_at=0.0
    ),
    "postgres": lambda: of_postgres.acquire_all(
        [request("a"), request("b")], holders=[HOLDER, HOLDER], started_at=0.0
    ),
}


class Interrupted:
    """A call that is interrupted while it asks for the first time; afterwards it cleans up.

    Attributes:
        asked: What it asks for to clean up.
        pauses: Its pauses, in seconds.
        at: The time.
        is_over: Whether it has ended, as what is interrupted does.
    """

    def __init__(self, call: Generator[Any, Any, Any]) -> None:
        self.call = call
        self.asked: list[Any] = []
        self.pauses: list[float] = []
        self.at = 0.0
        self.is_over = False
        next(call)
        self._go(lambda: call.throw(KeyboardInterrupt()))

    def _go(self, go: Callable[[], Any]) -> None:
        try:
            step = go()
            while isinstance(step, Pause):
                assert step.see_through
                self.pauses.append(step.seconds)
                self.at += step.seconds
                step = self.call.send(self.at)
            assert step.see_through
            self.asked.append(step)
        except KeyboardInterrupt:
            self.is_over = True

    def fail(self, *, passing: bool = True, after: float = 0.001) -> None:
        """Let what is asked fail; on two of three nodes."""
        asked_at, self.at = self.at, self.at + after
        trouble = Trouble("gone", passing=passing, at=self.at)
        if isinstance(self.asked[-1], AskNodes):
            told = RedisReply(["released", self.asked[-1].arguments[0]], asked_at, self.at)
            came = [trouble, trouble, told if len(self.asked) == 1 else None]
            self._go(lambda: self.call.send(Replies(came, asked_at, self.at)))
        else:
            self._go(lambda: self.call.throw(trouble))

    def answer(self) -> None:
        """Let what is asked be answered."""
        asked_at, self.at = self.at, self.at + 0.001
        match self.asked[-1]:
            case RedisAsk(_, arguments):
                reply: Any = RedisReply(["released", arguments[0]], asked_at, self.at)
            case AskNodes(arguments=arguments, nodes=nodes):
                told = RedisReply(["released", arguments[0]], asked_at, self.at)
                came = [told if nodes is None or node in nodes else None for node in range(3)]
                reply = Replies(came, asked_at, self.at)
            case step if hasattr(step, "statement"):
                reply = PostgresReply([["released"]], asked_at, self.at, "")
            case _:
                reply = EtcdReply({}, asked_at, self.at)
        self._go(lambda: self.call.send(reply))


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Interrupted:
    return Interrupted(CALLS[request.param]())


@pytest.fixture(params=SEVERAL)
def several(request: pytest.FixtureRequest) -> Interrupted:
    return Interrupted(SEVERAL[request.param]())


def test_a_clean_up_that_fails_is_tried_again(call: Interrupted) -> None:
    call.fail()
    call.fail()
    call.answer()
    assert call.is_over
    assert len(call.asked) == 3
    assert all(0 < pause <= 2 * RETRY_SECONDS for pause in call.pauses)


def test_until_its_time_is_over(call: Interrupted) -> None:
    while not call.is_over:
        call.fail()
    assert len(call.asked) > 3
    assert call.at <= CLEAN_UP_SECONDS


def test_no_try_takes_longer_than_that(call: Interrupted) -> None:
    while not call.is_over:
        call.fail(after=call.asked[-1].within)
    assert call.at <= CLEAN_UP_SECONDS + 1e-9


def test_what_will_not_pass_is_not_tried_again(call: Interrupted) -> None:
    call.fail(passing=False)
    assert call.is_over
    assert len(call.asked) == 1


def resource_of(asked: Any) -> Any:
    return asked.to[0] if isinstance(asked, RedisAsk) else asked.values["resource"]


def test_of_several_those_are_tried_again_that_failed(several: Interrupted) -> None:
    several.fail()
    several.answer()
    several.answer()
    assert several.is_over
    assert [resource_of(asked) for asked in several.asked] == ["a", "b", "a"]


def test_several_have_the_time_of_one(several: Interrupted) -> None:
    while not several.is_over:
        several.fail(after=several.asked[-1].within)
    assert {resource_of(asked) for asked in several.asked} == {"a", "b"}
    assert several.at <= CLEAN_UP_SECONDS + 1e-9


def test_one_node_that_is_gone_is_told_twice_and_keeps_nobody() -> None:
    call = Interrupted(CALLS["redlock"]())
    told = RedisReply(["released", call.asked[0].arguments[0]], 0.0, 0.0)
    gone = Trouble("gone", passing=True, at=0.0)
    call._go(lambda: call.call.send(Replies([gone, told, told], 0.0, 0.0)))
    assert call.asked[1].nodes == (0,)
    assert not call.asked[1].patient
    call._go(lambda: call.call.send(Replies([gone, None, None], 0.0, 0.0)))
    assert call.is_over


# On servers


class Server:
    """A lock service behind proxies.

    Attributes:
        proxies: All of them; of a Redlock those of two nodes.
        others: Another service on the same locks, which looks.
    """

    def __init__(self, proxies: list[TcpProxy], asks: bytes, tells: bytes) -> None:
        self.proxies = proxies
        self._asks, self._tells = asks, tells

    def fall_silent(self) -> None:
        """Let nothing be heard of the next request to acquire."""
        for proxy in self.proxies:
            proxy.swallow_reply(containing=self._asks, silently=True)

    def has_fallen_silent(self) -> None:
        """Wait until that has come."""
        for proxy in self.proxies:
            assert proxy.swallowed.wait(SECONDS)

    def lose(self) -> None:
        """Let a clean-up not arrive, nor its first repetition, and their connections be lost."""
        for proxy in self.proxies:
            proxy.drop_request(containing=self._tells, times=2)

    def has_lost(self) -> None:
        """Wait until that has come."""
        for proxy in self.proxies:
            assert proxy.dropped.wait(SECONDS)


class Place:
    """Where locks are: makes services behind proxies, and some that are not."""

    def __init__(self, make: Callable[..., Any], urls: list[str], server: Server) -> None:
        self._make = make
        self._urls = urls
        self.server = server

    def locks(self, kind: str) -> Any:
        behind = [proxy.url for proxy in self.server.proxies]
        return self._make(kind, behind + self._urls[len(behind) :])

    def looking(self) -> Any:
        return self._make("sync", self._urls)


@pytest.fixture
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Its clean-ups have time enough, however loaded the machine is."""
    monkeypatch.setattr(asking, "CLEAN_UP_SECONDS", float(SECONDS))
    name = f"test-{uuid.uuid4().hex}"
    with contextlib.ExitStack() as stack:
        match request.param:
            case "redis":
                urls = [request.getfixturevalue("redis_url")]
                words = b"EVALSHA", b"EVALSHA"
                kinds: tuple[Any, Any] = RedisLockService, AsyncRedisLockService
            case "postgres":
                urls = [request.getfixturevalue("fenced_database")]
                words = b"fencing_", b"fencing_"
                kinds = PostgresLockService, AsyncPostgresLockService
            case "etcd":
                urls = [request.getfixturevalue("etcd_url")]
                words = b"/v3/kv/txn", b"/v3/lease/revoke"
                kinds = EtcdLockService, AsyncEtcdLockService
            case _:
                urls = [stack.enter_context(ValkeyProcess()).url for _ in range(3)]
                words = b"EVALSHA", b"EVALSHA"
                kinds = RedlockService, AsyncRedlockService

        def make(kind: str, at: list[str]) -> Any:
            cls = kinds[kind == "async"]
            if request.param == "postgres":
                return cls.from_url(at[0])
            if request.param == "redlock":
                at = [f"redlock://{','.join(urlsplit(each).netloc for each in at)}"]
            return cls.from_url(at[0], namespace=name)

        proxies = [stack.enter_context(TcpProxy.to(url)) for url in urls[:2]]
        yield Place(make, urls, Server(proxies, *words))


def is_free(place: Place) -> bool:
    with place.looking() as locks:
        if locks.locked("r"):
            return False
        with locks.acquire("r", blocking=False):
            return True


on_servers = pytest.mark.parametrize(
    "place", ["redis", "postgres", "etcd", "redlock"], indirect=True
)


@on_servers
@pytest.mark.parametrize("times", ["once", "twice"])
async def test_a_cancelled_acquisition_leaves_nothing_when_a_connection_is_lost(
    place: Place, times: str
) -> None:
    server = place.server
    async with place.locks("async") as locks:
        await (await locks.acquire("r")).release()  # it is connected
        server.fall_silent()
        task = asyncio.ensure_future(locks.acquire("r", ttl=60)._begin())
        await asyncio.to_thread(server.has_fallen_silent)
        server.lose()
        task.cancel()
        await asyncio.to_thread(server.has_lost)
        if times == "twice":
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(until, lambda: is_free(place))


@on_servers
def test_an_interrupted_acquisition_leaves_nothing_when_a_connection_is_lost(place: Place) -> None:
    server = place.server

    def interrupt() -> None:
        server.has_fallen_silent()
        server.lose()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with place.locks("sync") as locks:
        locks.acquire("r").release()  # it is connected
        server.fall_silent()
        interrupting = threading.Thread(target=interrupt)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            locks.acquire("r", ttl=60)
        interrupting.join()
        server.has_lost()
        until(lambda: is_free(place))

"""Several scripts in one pipeline: each request has its own answer, whatever becomes of others."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import pytest
import redis
import redis.asyncio

from fencing.clock import now
from fencing.embedded.cluster import ValkeyCluster
from fencing.embedded.proxy import TcpProxy
from fencing.locks.redis.clients import AsyncSibling, Sibling
from fencing.locks.redis.scripts import ACQUIRE, RELEASE, RENEW, keys_of
from fencing.locks.redis.wire import CHUNK_REQUESTS, packed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from fencing.embedded import ValkeyProcess

HOLDER = b"a" * 32
GRANTED = b"granted " + HOLDER + b" 1"
GRANTED_AGAIN = GRANTED.split()
MANY = 3 * CHUNK_REQUESTS + 7


class Threaded:
    """A sync sibling whose calls are awaited."""

    def __init__(self, sibling: Sibling) -> None:
        self._sibling = sibling

    async def run(self, *args: Any) -> Any:
        return await asyncio.to_thread(self._sibling.run, *args)

    async def run_many(self, *args: Any) -> list[Any]:
        return await asyncio.to_thread(self._sibling.run_many, *args)

    async def aclose(self) -> None:
        self._sibling.close()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def sibling_of(kind: str, url: str, **settings: Any) -> Any:
    if kind == "sync":
        return Threaded(Sibling(redis.Redis.from_url(url, **settings)))
    return AsyncSibling(redis.asyncio.Redis.from_url(url, **settings))


@pytest.fixture
async def sibling(kind: str, proxy: TcpProxy) -> AsyncIterator[Any]:
    sibling = sibling_of(kind, proxy.url, socket_timeout=None)
    yield sibling
    await sibling.aclose()


def open_connections(sibling: Any) -> list[Any]:
    """Those that wait for the next call; it would take late answers for its own."""
    way = sibling._sibling._way if isinstance(sibling, Threaded) else sibling._way
    return [connection for connection in way._stack._idle if connection.is_open()]


def acquires(namespace: str, count: int) -> list[Any]:
    return [(ACQUIRE, keys_of(namespace, f"r{n}"), acquire_args()) for n in range(count)]


def acquire_args() -> list[bytes]:
    return [HOLDER, b"60000", b"0", b"me"]


def soon(seconds: float = 30.0) -> float:
    return now() + seconds


class TestAnswers:
    async def test_come_in_the_order_of_the_requests(
        self, sibling: Any, redis_namespace: str
    ) -> None:
        requests = acquires(redis_namespace, MANY)
        answers = await sibling.run_many(requests, soon())
        assert answers == [GRANTED] * MANY
        mixed = [
            (RENEW, keys, [HOLDER, b"1", b"60000"]) if n % 2 else (RELEASE, keys, [b"b" * 32])
            for n, (_, keys, _) in enumerate(requests)
        ]
        answers = await sibling.run_many(mixed, soon())
        assert answers[0::2] == [[b"other", b"b" * 32]] * len(answers[0::2])
        assert answers[1::2] == [[b"renewed", HOLDER]] * len(answers[1::2])

    async def test_take_one_connection(
        self, sibling: Any, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        await sibling.run_many(acquires(redis_namespace, MANY), soon())
        assert proxy.connections == 1

    async def test_of_none(self, sibling: Any) -> None:
        assert await sibling.run_many([], soon()) == []

    @pytest.mark.parametrize("protocol", [2, 3])
    async def test_are_bytes_whatever_the_client_decodes(
        self, kind: str, proxy: TcpProxy, redis_namespace: str, protocol: int
    ) -> None:
        sibling = sibling_of(kind, proxy.url, protocol=protocol, decode_responses=True)
        answers = await sibling.run_many(acquires(redis_namespace, 2), soon())
        assert answers == [GRANTED] * 2
        await sibling.aclose()

    async def test_an_error_is_of_its_own_request_alone(
        self, sibling: Any, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        requests = acquires(redis_namespace, 5)
        redis_client.rpush(requests[2][1][0], "of another type")
        answers = await sibling.run_many(requests, soon())
        assert isinstance(answers.pop(2), redis.ResponseError)
        assert answers == [GRANTED] * 4
        assert await sibling.run_many(requests[:1], soon()) == [GRANTED_AGAIN]

    async def test_scripts_that_redis_does_not_know_are_told_once(
        self, kind: str, own_valkey: ValkeyProcess
    ) -> None:
        with TcpProxy.to(own_valkey.url) as proxy:
            sibling = sibling_of(kind, proxy.url)
            requests = acquires("fencing", MANY)
            requests += [(RELEASE, keys, [HOLDER]) for _, keys, _ in requests]
            answers = await sibling.run_many(requests, soon())
            assert answers == [GRANTED] * MANY + [b"released " + HOLDER] * MANY
            assert proxy.commands("EVAL") == 2
            assert proxy.commands("EVALSHA") == 4 * MANY - 2
            await sibling.aclose()


class TestFaults:
    async def test_a_connection_that_is_cut_in_the_middle(
        self, sibling: Any, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        requests = acquires(redis_namespace, MANY)
        await sibling.run_many(requests, soon())
        proxy.swallow_reply(containing=requests[CHUNK_REQUESTS][1][0])
        answers = await sibling.run_many(requests, soon())
        assert proxy.swallowed.is_set()
        assert answers[:CHUNK_REQUESTS] == [GRANTED_AGAIN] * CHUNK_REQUESTS
        # The proxy cuts at an answer; how many of the chunk came before it depends on the packets.
        failed = [answer for answer in answers if not isinstance(answer, list)]
        assert len(failed) >= MANY - 2 * CHUNK_REQUESTS
        assert answers[-len(failed) :] == failed
        assert all(isinstance(failure, redis.ConnectionError) for failure in failed)
        answers = await sibling.run_many(requests, soon())
        assert answers == [GRANTED_AGAIN] * MANY

    async def test_nobody_there(self, sibling: Any, proxy: TcpProxy) -> None:
        proxy.refuse()
        answers = await sibling.run_many(acquires("n", 3), soon())
        assert len(answers) == 3
        assert all(isinstance(answer, redis.ConnectionError) for answer in answers)

    async def test_an_answer_that_comes_too_late_is_not_taken_for_another_s(
        self, sibling: Any, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        requests = acquires(redis_namespace, 3)
        await sibling.run_many(requests, soon())
        proxy.hold()
        answers = await sibling.run_many(requests, soon(0.1))
        assert all(isinstance(a, redis.TimeoutError | TimeoutError) for a in answers)
        assert not open_connections(sibling)
        proxy.release()
        renewals = [(RENEW, keys, [HOLDER, b"1", b"60000"]) for _, keys, _ in requests]
        assert await sibling.run_many(renewals, soon()) == [[b"renewed", HOLDER]] * 3

    async def test_a_call_whose_time_is_up_sends_nothing(
        self, sibling: Any, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        answers = await sibling.run_many(acquires(redis_namespace, 3), now() - 1)
        assert len(answers) == 3
        assert all(isinstance(answer, redis.RedisError | OSError) for answer in answers)
        assert proxy.commands("EVALSHA") == 0

    async def test_cancelled_in_the_middle(self, proxy: TcpProxy, redis_namespace: str) -> None:
        sibling = sibling_of("async", proxy.url, max_connections=1)
        requests = acquires(redis_namespace, MANY)
        await sibling.run_many(requests, soon())
        proxy.hold()
        task = asyncio.ensure_future(sibling.run_many(requests, soon()))
        assert await asyncio.to_thread(proxy.held.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not open_connections(sibling)
        proxy.release()
        renewals = [(RENEW, keys, [HOLDER, b"1", b"60000"]) for _, keys, _ in requests]
        assert await sibling.run_many(renewals, soon()) == [[b"renewed", HOLDER]] * MANY
        await sibling.aclose()

    async def test_connections_that_were_closed_while_idle(
        self, sibling: Any, proxy: TcpProxy, redis_namespace: str
    ) -> None:
        requests = acquires(redis_namespace, 3)
        await sibling.run_many(requests, soon())
        for connection in open_connections(sibling):
            connection._answered_at = -math.inf  # as if that were some time ago
        proxy.cut()
        assert await sibling.run_many(requests, soon()) == [GRANTED_AGAIN] * 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=3) as cluster:
        yield cluster


async def test_on_a_cluster(kind: str, cluster: ValkeyCluster) -> None:
    if kind == "sync":
        given: Any = redis.RedisCluster(host="127.0.0.1", port=cluster.port)
        sibling: Any = Threaded(Sibling(given))
    else:
        sibling = AsyncSibling(redis.asyncio.RedisCluster(host="127.0.0.1", port=cluster.port))
    requests = acquires(kind, 30)
    assert await sibling.run_many(requests, soon()) == [GRANTED] * 30
    await sibling.aclose()
    if kind == "sync":
        given.close()


def test_packed_as_redis_py_does() -> None:
    keys, args = keys_of("n", "ä r"), [b"", b"x\r\ny", "ö".encode()]
    connection = redis.Connection()
    assert packed((RENEW, keys, args)) == b"".join(
        connection.pack_command("EVALSHA", RENEW.sha, len(keys), *keys, *args)
    )
    assert packed((RENEW, keys, args), by_text=True) == b"".join(
        connection.pack_command("EVAL", RENEW.text, len(keys), *keys, *args)
    )

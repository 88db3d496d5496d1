"""Who reads what is said to those who wait in threads: whoever waits alone, for himself."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fencing.clock import now
from fencing.errors import LockNotAcquiredError, LockServiceError
from fencing.keepalive import keepers, rules
from fencing.locks import lines as lines_of
from fencing.locks.redis import RedisLockService, listening, reading, subscribing, waiters
from fencing.locks.redis.reading import Wire
from fencing.locks.redis.scripts import ACQUIRE, keys_of
from fencing.locks.redis.waiting import HANDED_SECONDS, LOST, QUEUE_SECONDS, STRAY_SECONDS
from tests.contract.facade import ThreadedLocks, in_thread
from tests.locks.redis.waiting import begun, until
from tests.support.interrupting import interrupted_before_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.locks.redis.waiting import Server


class Heard:
    """Which threads have passed on what was said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[str] = []
        hear = subscribing.Audience.hear

        def note(audience: Any, line: bytes) -> str | None:
            if b" " in line:
                self.threads.append(threading.current_thread().name)
            return hear(audience, line)

        monkeypatch.setattr(subscribing.Audience, "hear", note)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    return Heard(monkeypatch)


@pytest.fixture
def service(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture
def locks(service: RedisLockService) -> Any:
    return ThreadedLocks(service)


def subscriber_of(service: RedisLockService) -> Any:
    return service._redis._waiters.subscribers[""]


def reads(service: RedisLockService) -> str:
    """Who reads: "nobody", "thread" or "waiter"."""
    subscriber = subscriber_of(service)
    reader = subscriber._reader
    return "nobody" if reader is None else "thread" if reader is subscriber else "waiter"


async def test_who_waits_alone_reads_for_himself(
    service: RedisLockService, locks: Any, others: Any, server: Server, heard: Heard
) -> None:
    for _ in range(2):
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        await until(lambda: reads(service) == "waiter")
        await held.release()
        await (await task).release()
        assert reads(service) == "nobody"
    assert heard.threads
    assert "fencing waiting" not in heard.threads


async def test_when_he_leaves_the_thread_reads_for_the_others(
    service: RedisLockService, locks: Any, others: Any, server: Server, heard: Heard
) -> None:
    held = [await others.acquire(resource, ttl=30) for resource in "rs"]
    first = begun(locks, "r")
    await until(lambda: service._redis._waiters.subscribers and reads(service) == "waiter")
    second = begun(locks, "s")
    await server.queued(1, "s")
    await held[0].release()
    await (await first).release()
    await until(lambda: reads(service) == "thread")
    # Who is alone then takes over when it asks again.
    await until(lambda: reads(service) == "waiter")
    await held[1].release()
    await (await second).release()
    assert reads(service) == "nobody"


@pytest.mark.parametrize("how", ["time", "error"])
async def test_also_when_he_gives_up(
    service: RedisLockService, locks: Any, others: Any, server: Server, how: str
) -> None:
    held = [await others.acquire(resource, ttl=30) for resource in "rs"]
    # So long that whoever looks sees him wait, also where a busy machine does nothing for a second.
    first = begun(locks, "r", blocking_timeout=3 if how == "time" else 20)
    await until(lambda: service._redis._waiters.subscribers and reads(service) == "waiter")
    second = begun(locks, "s")
    await server.queued(1, "s")
    if how == "error":
        server.client.persist(keys_of(server.namespace, "r")[0])
    with pytest.raises((LockNotAcquiredError, LockServiceError)):
        await first
    await held[1].release()
    await (await second).release()
    await held[0].release()


async def test_what_a_stray_was_handed_is_given_back_while_nobody_waits(
    service: RedisLockService,
    locks: Any,
    others: Any,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = await others.acquire("r", ttl=30)
    task = begun(locks)
    await server.queued()
    await held.release()
    await (await task).release()
    assert reads(service) == "nobody"
    service._redis._waiters.disown("f" * 32, "r")
    await until(lambda: reads(service) == "thread")
    given: list[tuple[str, str]] = []
    came = threading.Event()

    def give_back(*what: str) -> None:
        given.append(what)
        came.set()

    monkeypatch.setattr(service._redis._waiters, "_give_back", give_back)
    server.client.publish(service._redis._waiters.channel, f"{'f' * 32} 7")
    assert await in_thread(came.wait, 20)
    assert given == [("r", "f" * 32)]


async def test_after_a_time_nothing_is_read_for_who_gave_up(
    service: RedisLockService,
    locks: Any,
    others: Any,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service._redis._waiters.disown("f" * 32, "r")
    for later, reader in ((0, "thread"), (STRAY_SECONDS, "nobody")):
        monkeypatch.setattr(listening, "now", lambda later=later: now() + later)
        held = await others.acquire("r", ttl=30)
        task = begun(locks)
        await server.queued()
        await until(lambda: reads(service) == "waiter")
        await held.release()
        await (await task).release()
        assert reads(service) == reader


def test_that_time_is_what_the_scripts_say() -> None:
    assert f"QUEUE_TTL = {QUEUE_SECONDS * 1000:.0f}\n" in ACQUIRE.text
    assert f"HANDED = {HANDED_SECONDS * 1000:.0f}\n" in ACQUIRE.text


async def test_closing_while_he_reads_leaves_him_waiting_for_the_lock(
    service: RedisLockService, locks: Any, others: Any, server: Server
) -> None:
    held = await others.acquire("r", ttl=30)
    task = begun(locks)
    await server.queued()
    await until(lambda: reads(service) == "waiter")
    subscriber = subscriber_of(service)
    await in_thread(service.close)
    await until(lambda: subscriber._connection._sock is None)  # closed by whoever was last
    await held.release()
    await (await task).release()
    assert server.leftovers() == []


async def test_a_silent_connection_is_noticed_while_he_reads(
    service: RedisLockService,
    locks: Any,
    others: Any,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subscribing, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(listening, "AGAIN_SECONDS", 0.0)
    held = await others.acquire("r", ttl=30)
    task = begun(locks)
    await server.queued()
    await until(lambda: reads(service) == "waiter")
    subscriber = subscriber_of(service)
    monkeypatch.setattr(Wire, "send", lambda *_: None)  # so that nothing is answered
    await until(lambda: subscriber.audience.over)
    await held.release()
    await (await task).release()


def test_an_interrupt_before_any_line_of_waiting_leaves_no_lock_and_no_reader(
    service: RedisLockService, redis_namespace: str, server: Server, redis_url: str
) -> None:
    modules = (lines_of, listening, reading, subscribing, waiters)
    keys = [keys_of(redis_namespace, "r")[place] for place in (0, 2)]
    number, interrupted = 0, True
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as others:
        others.acquire("r", ttl=60)
        with pytest.raises(LockNotAcquiredError):  # so that it listens
            service.acquire("r", blocking_timeout=0.05)
        others.force_release("r")
        while interrupted:
            number += 1
            interrupted = False
            held, gone = others.acquire("r", ttl=60), threading.Event()

            def release_when_somebody_reads(held: Any = held, gone: threading.Event = gone) -> None:
                while reads(service) != "waiter" and not gone.wait(0.001):
                    pass
                held.release()

            releasing = threading.Thread(target=release_when_somebody_reads)
            releasing.start()
            lines: list[str] = []
            try:
                with interrupted_before_line(number, *modules) as lines:
                    service.acquire("r", ttl=60).release()
            except KeyboardInterrupt:
                interrupted = True
            gone.set()
            releasing.join()
            for key in keys:
                end = now() + 10
                while server.client.exists(key):
                    assert now() < end, (number, lines[-3:])
            assert reads(service) != "waiter", (number, lines[-3:])
            assert not service._redis._waiters.threads._here, (number, lines[-3:])
    # The last time nothing was interrupted, so that all lines of it are known.
    assert "wire.wait(left)" in lines
    assert "self._take_in(wire)" in lines


class TestWire:
    def test_the_end_of_the_connection(self) -> None:
        near, far = socket.socketpair()
        with near, far:
            wire = Wire(near)
            assert wire.receive()
            far.sendall(b"one\r\ntw")
            wire.wait(20)
            assert wire.receive()
            assert list(wire.lines.come) == [b"one"]
            far.close()
            wire.wait(20)
            assert not wire.receive()

    def test_who_is_interrupted_while_it_receives_takes_nothing_any_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        near, far = socket.socketpair()
        with near, far:
            wire = Wire(near)

            def interrupt(_: bytes) -> None:
                raise KeyboardInterrupt

            monkeypatch.setattr(wire.lines, "feed", interrupt)
            far.sendall(b"holder 12")
            wire.wait(20)
            with contextlib.suppress(KeyboardInterrupt):
                wire.receive()
            far.sendall(b"3\r\n")
            assert not wire.receive()

    def test_what_tls_has_read_already_is_not_waited_for(self) -> None:
        near, far = socket.socketpair()

        class Decrypted:
            """A socket of whose bytes some were read, and not taken."""

            def settimeout(self, _: float) -> None:
                near.settimeout(0)

            def fileno(self) -> int:
                raise AssertionError("the system does not know of them")

            def pending(self) -> int:
                return 5

        with near, far:
            Wire(Decrypted()).wait(20)


def test_a_reader_who_sees_the_end_tells_all(redis_url: str, server: Server) -> None:
    with RedisLockService.from_url(redis_url, namespace=server.namespace) as locks:
        with locks._redis._waiters.lock:
            subscriber = locks._redis._waiters.subscriber(b"key", start=True)
            boxes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(2)]
            subscriber.audience.add("a", boxes[0])
        assert boxes[0].get(timeout=20) == "ready"
        reading = threading.Thread(target=subscriber.read_for, args=(boxes[0], now() + 20))
        reading.start()
        with locks._redis._waiters.lock:
            subscriber.audience.add("b", boxes[1])
        assert server.client.client_kill_filter(_type="pubsub") >= 1
        assert boxes[0].get(timeout=20) == boxes[1].get(timeout=20) == LOST
        reading.join()
        subscriber.stop()
        assert subscriber.audience.over


async def test_what_is_given_back_at_once_is_not_made_to_last(
    locks: Any, others: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    due = keepers.Keeper._due

    def note(keeper: Any, entries: Any) -> Any:
        found = due(keeper, entries)
        asked.append([lease.resource for _, lease in found])
        return found

    monkeypatch.setattr(keepers.Keeper, "_due", note)
    leeway = rules.leeway

    def longer(lease: Any, at: float) -> float:  # so that no machine is too slow to give "r" back
        return 60.0 if lease.resource == "r" else leeway(lease, at)

    monkeypatch.setattr(rules, "leeway", longer)
    for resource in ("s", "r"):
        held = await others.acquire(resource, ttl=30)
        waiting = begun(locks, resource)
        await server.queued(resource=resource)
        await held.release()
        lease = await waiting
        if resource == "s":
            await until(lambda lease=lease: lease.remaining > 20)
        await lease.release()
    assert [names for names in asked if names] == [["s"]]

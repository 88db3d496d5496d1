"""Signal handlers that use a lock service while their thread is in it: nobody waits for himself.

A handler runs between any two instructions, and its thread stands still until it is done.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from redis.exceptions import MaxConnectionsError

from fencing.clock import now
from fencing.embedded.asking import until
from fencing.errors import LockNotAcquiredError
from fencing.locks import lines as lines_of
from fencing.locks.redis import (
    RedisLockService,
    clustered,
    listening,
    reading,
    stack,
    subscribing,
    topology,
    waiters,
    waiting,
)
from fencing.locks.redis.clustered import Clustered
from fencing.locks.redis.stack import ConnectionStack
from fencing.locks.redis.waiting import LISTEN_SECONDS
from tests.support.interrupting import (
    ends,
    handled_before_line,
    handled_before_step,
    interrupted_before_step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencing.locks.redis.topology import Address
    from tests.locks.redis.waiting import Server

MODULES = (lines_of, listening, reading, subscribing, waiters, waiting)


class Connection:
    """One that is always fine."""

    is_wanted = True

    def is_ready(self) -> bool:
        return True

    def is_quiet(self) -> bool:
        return True

    def is_open(self) -> bool:
        return True

    def disconnect(self) -> None:
        """Nothing to do."""


def stack_of(size: int) -> ConnectionStack:
    return ConnectionStack(
        SimpleNamespace(max_connections=size, connection_class=Connection, connection_kwargs={})
    )


class TestStack:
    @pytest.mark.parametrize("size", [2, 3])
    def test_a_call_before_any_step_of_another(self, size: int) -> None:
        def call_at_every_step() -> None:
            number, was_called = 0, True
            while was_called:
                number += 1
                was_called = self.passes(size, number)
            assert number > 100

        assert ends(call_at_every_step)

    def passes(self, size: int, number: int) -> bool:
        """Calls of which one is interrupted by another; return whether there are so many steps."""
        connections = stack_of(size)

        def call() -> None:
            with contextlib.suppress(MaxConnectionsError):
                connections.give_back(connections.take(now()))

        def handler() -> None:
            # Others have given theirs back, and wait to hand them on.
            connections._idle.extend(taken)
            call()

        taken = [connections.take(now() + 20) for _ in range(size)]
        turn = stack._Turn()
        connections._queue(turn)  # of another thread
        with handled_before_step(number, handler, stack) as steps:
            call()
        was_called = len(steps) >= number
        if not was_called:
            connections._idle.extend(taken)
        connections._hand_on()
        assert turn.wait(now()), steps[-3:]
        connections.give_back(turn.connection)
        assert not connections._waiting
        assert set(connections._idle) == set(taken), steps[-3:]
        assert len(connections._idle) == len(connections.connections()) == size, steps[-3:]
        return was_called


class TestInterruptsInAStack:
    """Whatever step an interrupt comes before, no connection is lost, and nobody is passed over."""

    SIZE = 2

    @pytest.fixture(autouse=True)
    def impatience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(stack, "BACKSTOP", 0.01)

    def interrupted_at_every_step(
        self, begin: Callable[[ConnectionStack, list[Any]], Callable[[], Any]]
    ) -> None:
        """Do something with a stack all of whose connections were taken, and look at it after."""
        number, was_interrupted = 0, True
        while was_interrupted:
            number += 1
            connections = stack_of(self.SIZE)
            taken = [connections.take(now() + 20) for _ in range(self.SIZE)]
            work = begin(connections, taken)
            with (
                contextlib.suppress(KeyboardInterrupt, MaxConnectionsError),
                interrupted_before_step(number, stack) as steps,
            ):
                work()
            was_interrupted = len(steps) >= number
            while taken:
                connections.give_back(taken.pop())
            again = []
            for _ in range(self.SIZE):
                with contextlib.suppress(MaxConnectionsError):
                    again.append(connections.take(now() + 0.1))
            assert len(set(again)) == self.SIZE, steps[-3:]
            assert not connections._waiting, steps[-3:]
        assert number > 2

    def test_who_takes_one(self) -> None:
        def begin(connections: ConnectionStack, taken: list[Any]) -> Callable[[], Any]:
            connections.give_back(taken.pop())
            return lambda: taken.append(connections.take(now() + 20))

        self.interrupted_at_every_step(begin)

    def test_who_makes_one(self) -> None:
        def begin(connections: ConnectionStack, taken: list[Any]) -> Callable[[], Any]:
            taken.pop()
            return lambda: taken.append(connections.take(now() + 20))

        self.interrupted_at_every_step(begin)

    def test_who_waits_in_vain(self) -> None:
        def begin(connections: ConnectionStack, _: list[Any]) -> Callable[[], Any]:
            return lambda: connections.take(now())

        self.interrupted_at_every_step(begin)

    def test_who_closes_them(self) -> None:
        def begin(connections: ConnectionStack, taken: list[Any]) -> Callable[[], Any]:
            connections.give_back(taken.pop())
            return connections.close

        self.interrupted_at_every_step(begin)

    def test_who_drops_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def begin(_: ConnectionStack, taken: list[Any]) -> Callable[[], Any]:
            return taken.clear

        swallowed: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", lambda each: swallowed.append(each.exc_type))
        self.interrupted_at_every_step(begin)
        assert set(swallowed) == {KeyboardInterrupt}

    def test_who_gives_one_back_while_another_waits(self) -> None:
        def begin(connections: ConnectionStack, taken: list[Any]) -> Callable[[], Any]:
            def wait() -> None:
                connections.give_back(connections.take(now() + 20))

            other = threading.Thread(target=wait)
            other.start()
            until(lambda: bool(connections._waiting), "nobody waits")

            def give_back() -> None:
                try:
                    connections.give_back(taken.pop())
                finally:
                    others.append(other)

            return give_back

        others: list[threading.Thread] = []
        self.interrupted_at_every_step(begin)
        for other in others:
            other.join()


class Node:
    """One of a cluster, which says what it is told to."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def command(self, _: float, *__: bytes) -> list[list[object]]:
        return [[0, 16383, [b"a", 1]]]

    def close(self) -> None:
        """Nothing to do."""


def test_it_looks_at_a_cluster_before_any_step_of_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_at_every_step() -> None:
        number, has_looked = 0, True
        while has_looked:
            number += 1
            nodes = Clustered(SimpleNamespace(nodes_manager=SimpleNamespace(address_remap=None)))
            nodes._node(("gone", 1))

            def look(nodes: Clustered = nodes) -> None:
                nodes._topology.look_again()
                nodes._know(now() + 1)

            with handled_before_step(number, look, clustered, topology) as steps:
                look()
            has_looked = len(steps) >= number
            assert list(nodes._nodes) == [("a", 1)], steps[-3:]
            assert nodes._topology.primaries == [("a", 1)], steps[-3:]

    monkeypatch.setattr(clustered, "known_nodes", lambda _: [("a", 1)])
    monkeypatch.setattr(clustered, "node_maker", lambda _: lambda address: address)
    monkeypatch.setattr(clustered, "Direct", Node)
    monkeypatch.setattr(topology, "SLOTS", 2)
    assert ends(look_at_every_step)


@pytest.fixture
def holder(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    """Another process's service, in effect."""
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> RedisLockService:
    # Closed by the tests, if they succeed: its thread may wait for itself for ever.
    return RedisLockService.from_url(redis_url, namespace=redis_namespace)


def use_another_lock(locks: RedisLockService) -> None:
    locks.acquire("another", ttl=60).release()


def close(locks: RedisLockService) -> None:
    locks.close()


class TestWaiting:
    @pytest.mark.parametrize("work", [use_another_lock, close])
    def test_a_handler_before_any_line(
        self,
        work: Callable[[RedisLockService], None],
        locks: RedisLockService,
        holder: RedisLockService,
        server: Server,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        join = threading.Thread.join

        def join_briefly(thread: threading.Thread, timeout: float | None = None) -> None:
            # Closing waits for a thread that waits for who is interrupted.
            join(thread, 0.01 if timeout == LISTEN_SECONDS else timeout)

        monkeypatch.setattr(threading.Thread, "join", join_briefly)

        def work_at_every_line() -> None:
            number, was_handled = 0, True
            while was_handled:
                number += 1
                with (
                    released_when_registered(holder, server),
                    handled_before_line(number, lambda: work(locks), *MODULES) as lines,
                ):
                    locks.acquire("r", ttl=60).release()
                was_handled = len(lines) >= number
                assert server.leftovers() == [], lines[-3:]
                assert reader(locks) != "waiter", lines[-3:]
                assert not locks._redis._waiters.threads._here, lines[-3:]
            assert "wire.wait(left)" in lines
            assert "self._take_in(wire)" in lines

        assert ends(work_at_every_line, 120)
        locks.close()

    @pytest.mark.parametrize(
        ("line", "before_it"),
        [
            ("found = self._waiters.subscriber(self._key, start=start)", "its own thread"),
            ("wire.wait(left)", "its own thread"),
            ("self._take_in(wire)", "its own thread"),
            ("line.append(box)", "another thread"),
            ("message = self._box.get(timeout=min(left, threading.TIMEOUT_MAX))", "another thread"),
        ],
    )
    def test_a_handler_waits_for_the_very_lock(
        self,
        line: str,
        before_it: str,
        locks: RedisLockService,
        holder: RedisLockService,
        server: Server,
    ) -> None:
        held = holder.acquire("r", ttl=60)
        handled = threading.Event()

        def acquire() -> None:
            locks.acquire("r", ttl=60).release()

        def handler() -> None:
            held.release()
            acquire()
            handled.set()

        other = threading.Thread(target=acquire, daemon=True)

        def wait_for_it() -> None:
            if before_it == "another thread":
                other.start()
                while not server.waiting():
                    pass
            with handled_before_line(line, handler, *MODULES):
                acquire()

        assert ends(wait_for_it)
        assert handled.is_set()
        if before_it == "another thread":
            other.join()
        assert server.leftovers() == []
        locks.close()

    @pytest.mark.parametrize("line", ["return self._nonce()", "wire.wait(left)"])
    def test_a_handler_is_handed_another_lock(
        self, line: str, locks: RedisLockService, holder: RedisLockService, server: Server
    ) -> None:
        held = holder.acquire("r", ttl=60)

        def handler() -> None:
            with released_when_registered(holder, server, "s"):
                locks.acquire("s", ttl=60).release()
            held.release()

        def wait_for_it() -> None:
            with handled_before_line(line, handler, *MODULES):
                locks.acquire("r", ttl=60).release()

        assert ends(wait_for_it)
        assert server.leftovers() == []
        locks.close()

    def test_a_handler_leaves_what_its_thread_is_making(
        self, locks: RedisLockService, holder: RedisLockService, server: Server
    ) -> None:
        holder.acquire("s", ttl=60)

        def handler() -> None:
            with pytest.raises(LockNotAcquiredError):
                locks.acquire("s", blocking_timeout=0.1)

        def wait_for_it() -> None:
            line = "self._subscribers[node] = made"
            with (
                released_when_registered(holder, server),
                handled_before_line(line, handler, *MODULES),
            ):
                locks.acquire("r", ttl=60).release()

        assert ends(wait_for_it)
        locks.close()
        assert server.listeners() == 0


def reader(locks: RedisLockService) -> str:
    subscriber = locks._redis._waiters.subscribers.get("")
    if subscriber is None or subscriber._reader is None:
        return "nobody"
    return "thread" if subscriber._reader is subscriber else "waiter"


@contextlib.contextmanager
def released_when_registered(
    holder: RedisLockService, server: Server, resource: str = "r"
) -> Iterator[None]:
    """Another holds the lock, and lets it go when somebody is registered as waiting for it."""
    held, over = holder.acquire(resource, ttl=60), threading.Event()

    def release() -> None:
        while not server.waiting(resource) and not over.wait(0.001):
            pass
        held.release()

    releasing = threading.Thread(target=release)
    releasing.start()
    try:
        yield
    finally:
        over.set()
        releasing.join()

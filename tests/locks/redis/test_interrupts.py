"""Signals whose handlers raise, wherever they come: no lock is left behind that nobody knows of."""

from __future__ import annotations

import contextlib
import faulthandler
import random
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from fencing import RedisLockService
from fencing.clock import now
from fencing.core import acquiring_all, held, plan, several
from fencing.core import performing as core_performing
from fencing.keepalive import agenda, keepers, rules, tickers
from fencing.lease import base as lease_base
from fencing.lease import blocks, group, leases
from fencing.locks import asking as common_asking
from fencing.locks import base as locks_base
from fencing.locks import judging
from fencing.locks import performing as common_performing
from fencing.locks.redis import (
    acquiring,
    asking,
    bounded,
    clients,
    direct,
    listening,
    performing,
    service,
    stack,
    steps,
    together,
    waiters,
    waiting,
)  # fmt: skip
from fencing.locks.redis.scripts import keys_of
from fencing.locks.redis.wire import packed_words
from tests.locks.redis.test_connections import locks_stack
from tests.support.interrupting import interrupted_before_line, interrupted_before_step
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.child import Parent

MODULES = (
    acquiring, acquiring_all, agenda, asking, blocks, clients, common_asking, common_performing,
    core_performing, group, held, judging, keepers, lease_base, leases, listening, locks_base,
    performing, plan, rules, service, several, steps, tickers, together, waiters, waiting,
)  # fmt: skip


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        locks.acquire("warm up").release()
        yield locks


def use_a_block(locks: RedisLockService) -> None:
    with locks.acquire("r", ttl=60):
        pass


def use_a_kept_lease(locks: RedisLockService) -> None:
    with locks.acquire("r", ttl=60, keepalive=True, on_lost=print):
        pass


def re_enter(locks: RedisLockService) -> None:
    with locks.acquire("r", ttl=60), locks.acquire("r", ttl=60, reentrant=True):
        pass


def renew(locks: RedisLockService) -> None:
    with locks.acquire("r", ttl=60) as lease:
        lease.renew()


def try_it(locks: RedisLockService) -> None:
    with locks.try_acquire("r", ttl=60) or contextlib.nullcontext():
        pass


def use_a_group(locks: RedisLockService) -> None:
    with locks.acquire_all(["another", "r"], ttl=60):
        pass


@pytest.mark.parametrize(
    "use", [use_a_block, use_a_kept_lease, re_enter, renew, try_it, use_a_group]
)
def test_an_interrupt_before_any_line_leaves_no_lock(
    use: Callable[[RedisLockService], None],
    locks: RedisLockService,
    redis_client: Any,
    redis_namespace: str,
) -> None:
    keys = [keys_of(redis_namespace, resource)[0] for resource in ("r", "another")]
    number, interrupted = 0, True
    while interrupted:
        number += 1
        interrupted = False
        with interrupted_before_line(number, *MODULES) as lines:
            try:
                use(locks)
            except KeyboardInterrupt:
                interrupted = True
        assert not redis_client.exists(*keys), (number, lines[-3:])
    assert number > 50


def acquire_and_release(locks: RedisLockService) -> None:
    locks.acquire("r", ttl=60, blocking=False).release()


@pytest.mark.parametrize("use", [use_a_block, acquire_and_release])
def test_an_interrupt_leaves_the_only_connection_to_whoever_handles_it(
    use: Callable[[RedisLockService], None],
    redis_url: str,
    redis_client: Any,
    redis_namespace: str,
) -> None:
    with RedisLockService.from_url(
        redis_url, namespace=redis_namespace, max_connections=1
    ) as locks:
        locks.acquire("warm up").release()
        number, interrupted = 0, True
        while interrupted:
            number += 1
            interrupted = False
            with interrupted_before_step(number, bounded, direct, judging, stack, steps) as lines:
                try:
                    use(locks)
                except KeyboardInterrupt:
                    interrupted = True
                    # Now, as long as the traceback holds what it has come across.
                    locks.acquire("another", blocking=False).release()
            assert len(locks_stack(locks).connections()) == 1, lines[-3:]
            if use is use_a_block:
                assert not redis_client.exists(keys_of(redis_namespace, "r")[0]), lines[-3:]
            else:  # between the two nobody knows of the lease but its holder
                redis_client.delete(keys_of(redis_namespace, "r")[0])
        assert number > 30


def test_an_interrupt_leaves_no_answer_to_the_next_who_asks(
    redis_url: str, redis_namespace: str
) -> None:
    def say(connection: Any, word: bytes) -> None:
        connection.until = now() + 20
        connection.send(packed_words(b"ECHO", word))

    def ask(connections: Any) -> bytes:
        connection = connections.take(now() + 20)
        say(connection, b"new")
        answer: bytes = connection.answer()
        connections.give_back(connection)
        return answer

    with RedisLockService.from_url(
        redis_url, namespace=redis_namespace, max_connections=1
    ) as locks:
        connections = locks_stack(locks)
        number, interrupted = 0, True
        while interrupted:
            number += 1
            interrupted = False
            taken = [connections.take(now() + 20)]
            say(taken[0], b"old")
            with interrupted_before_step(number, bounded, stack) as lines:
                try:
                    connections.give_back(taken.pop(), in_step=False)
                except KeyboardInterrupt:
                    interrupted = True
                    assert ask(connections) == b"new", lines[-3:]
            assert ask(connections) == b"new", lines[-3:]
        assert number > 2


def work_until_told(parent: Parent, url: str, namespace: str) -> None:
    """Acquire and release, and look after each interrupt whether a lock was left."""
    faulthandler.dump_traceback_later(18)  # should it ever hang: where
    locks = RedisLockService.from_url(url, namespace=namespace)

    class Terminated(BaseException):
        """What this application makes of SIGTERM; others swallow an ``Exception`` in places."""

    def terminate(*_: object) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, terminate)
    interrupted = orphans = 0
    while interrupted < 200:
        wanted = random.choice([signal.SIGINT, signal.SIGTERM])
        delay = random.uniform(0.0001, 0.004)
        timer = threading.Timer(delay, signal.pthread_kill, [threading.main_thread().ident, wanted])
        try:
            timer.start()
            while timer.is_alive():
                with locks.acquire("r", ttl=60):
                    time.sleep(0.0005)
            timer.join()  # it came in a __del__ then, where nothing can be raised
        except (KeyboardInterrupt, Terminated):
            interrupted += 1
        timer.join()
        if locks.locked("r"):
            orphans += 1
            locks.force_release("r")
    parent.report("done", interrupted=interrupted, orphans=orphans)


def test_of_200_interrupts_none_leaves_a_lock(redis_url: str, redis_namespace: str) -> None:
    with ChildProcess(work_until_told, redis_url, redis_namespace) as child:
        done = child.wait_for("done")
        child.check()
    assert done["interrupted"] == 200
    assert done["orphans"] == 0

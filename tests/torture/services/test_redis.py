"""What is done to one Redis is done."""

from __future__ import annotations

import pytest
import redis

from fencing.embedded.asking import ask, until
from fencing.torture.services.base import can_jump
from fencing.torture.settings import Settings
from tests.support.striking import Most, struck

pytestmark = pytest.mark.slow


@pytest.fixture(params=["redis", "redis-aof", "redis-everysec"])
def any_redis(request):
    with struck(request.param) as servers:
        yield servers


@pytest.fixture
def plain():
    with struck("redis") as servers:
        yield servers


def held(locks) -> bool:
    return locks.locked("a")


def hold(locks) -> int:
    return locks.acquire("a", ttl=60.0).token


@pytest.mark.parametrize(
    ("name", "keeps"), [("redis", False), ("redis-aof", True), ("redis-everysec", True)]
)
def test_killed_it_forgets_or_not(name, keeps):
    with struck(name) as servers, servers.locks() as locks:
        hold(locks)
        before = servers.servers.server.pid
        servers.perform("Redis killed")
        assert servers.servers.server.pid != before
        assert held(locks) is keeps
        assert servers.kinds["Redis killed"].breaks_order is (name != "redis-aof")


def test_emptied_it_forgets(any_redis):
    with any_redis.locks() as locks:
        hold(locks)
        any_redis.perform("Redis emptied")
        assert not held(locks)


def test_without_memory_it_forgets(any_redis):
    with any_redis.locks() as locks:
        hold(locks)
        with any_redis.during("keys evicted"):
            assert ask(any_redis.servers.server, "DBSIZE") == 0
        assert hold(locks) == 1


def test_counters_set_back_repeat_tokens(any_redis):
    with any_redis.locks() as locks:
        for _ in range(9):
            locks.acquire("a").release()
        any_redis.perform("counters set back", Most())
        assert locks.acquire("a").token == 6


def test_counters_deleted_begin_anew_and_locks_stay(any_redis):
    with any_redis.locks() as locks:
        for _ in range(4):
            locks.acquire("b").release()
        hold(locks)
        any_redis.perform("counters deleted")
        assert held(locks)
        assert locks.acquire("b").token == 1


def test_scripts_are_forgotten(any_redis):
    with any_redis.locks() as locks:
        locks.acquire("b").release()
        assert ask(any_redis.servers.server, "INFO", "memory")["number_of_cached_scripts"] > 0
        any_redis.perform("scripts forgotten")
        assert ask(any_redis.servers.server, "INFO", "memory")["number_of_cached_scripts"] == 0


def test_clients_are_cut_off(any_redis):
    with redis.Redis.from_url(any_redis.servers.url("w0.0")) as client:
        before = client.client_id()
        any_redis.perform("clients cut off")
        assert client.client_id() != before


@pytest.mark.parametrize("name", ["Redis stopped", "Redis paused"])
def test_it_does_not_answer_for_a_while(any_redis, name):
    url = any_redis.servers.url("w0.0")
    hasty = redis.Redis.from_url(url, socket_timeout=0.05, retry=None)
    any_redis.stage.settings = Settings(ttl=1.0)  # a pause ends by itself, and not before the ping
    with hasty as client, any_redis.during(name, Most()), pytest.raises(redis.TimeoutError):
        client.ping()
    with redis.Redis.from_url(url, socket_timeout=10.0) as client:
        assert client.ping()


@pytest.mark.skipif(not can_jump(), reason="false clocks are for Linux with a C compiler")
def test_its_clock_is_ahead_and_locks_end(any_redis):
    with any_redis.locks() as locks:
        hold(locks)
        with any_redis.during("clock ahead"):
            # It looks at its clock between commands, and may have done so just before.
            until(lambda: not held(locks), "what was held has not ended")
            hold(locks)
        until(lambda: not held(locks), "what it granted meanwhile has not ended")


@pytest.mark.skipif(not can_jump(), reason="false clocks are for Linux with a C compiler")
def test_its_clock_is_behind_and_locks_end_when_it_is_right(any_redis):
    with any_redis.locks() as locks:
        with any_redis.during("clock behind"):
            hold(locks)
            assert held(locks)
        until(lambda: not held(locks), "what it granted meanwhile has not ended")


def test_restored_it_has_what_it_had_before(plain):
    with plain.locks() as locks:
        hold(locks)
        steps = plain.begun("Redis restored")  # the copy is made
        locks.force_release("a")
        for _ in range(5):
            locks.acquire("a", ttl=60.0).release()
        for _ in steps:
            pass
        assert held(locks)
        assert locks.inspect("a").counter == 1


def test_the_end_of_what_was_written_is_lost():
    with struck("redis-everysec") as servers, servers.locks() as locks:
        for number in range(200):
            locks.acquire(f"long before {number}", ttl=60.0)
        hold(locks)
        servers.perform("last writes lost", Most())
        assert locks.locked("long before 0")
        assert not held(locks)

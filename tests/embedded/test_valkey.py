"""What an embedded Valkey keeps, and what it throws out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from fencing.embedded import ValkeyProcess
from fencing.embedded.asking import ask, until

if TYPE_CHECKING:
    from fencing.embedded.valkey import Persistence


@pytest.mark.parametrize(
    ("persistence", "policy"),
    [("none", ""), ("everysec", "everysec"), ("always", "always"), ("snapshot", "")],
)
def test_what_a_kill_leaves(persistence: Persistence, policy: str) -> None:
    with ValkeyProcess(persistence=persistence) as valkey:
        if policy:
            assert ask(valkey, "CONFIG GET", "appendfsync") == {"appendfsync": policy}
        ask(valkey, "SET", "x", 1)
        if persistence == "everysec":
            until(lambda: info(valkey, "aof_pending_bio_fsync") == "0", "it was not flushed")
        if persistence == "snapshot":
            assert any(ask(valkey, "CONFIG GET", "save").values())
            ask(valkey, "SAVE")
            ask(valkey, "CONFIG SET", "save", "")  # the next would be a second later
        ask(valkey, "SET", "y", 1)
        valkey.kill()
        valkey.start()
        kept = {"none": 0, "snapshot": 1}.get(persistence, 2)
        assert ask(valkey, "EXISTS", "x", "y") == kept


def info(valkey: ValkeyProcess, name: str) -> str:
    return str(ask(valkey, "INFO", "persistence")[name])


def test_an_orderly_stop_writes_a_snapshot() -> None:
    with ValkeyProcess(persistence="snapshot") as valkey:
        ask(valkey, "SET", "x", 1)
        valkey.stop()
        valkey.start()
        assert ask(valkey, "GET", "x") == b"1"


def test_a_persistence_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="none, everysec, always, snapshot, not 'rdb'"):
        ValkeyProcess(persistence="rdb")


def test_keys_are_evicted_when_its_memory_is_full() -> None:
    with ValkeyProcess(memory="3mb", eviction="allkeys-random") as valkey:
        fill(valkey)
        assert ask(valkey, "INFO", "stats")["evicted_keys"] > 0


def test_writes_are_refused_when_its_memory_is_full_and_nothing_is_evicted() -> None:
    with (
        ValkeyProcess(memory="3mb") as valkey,
        pytest.raises(redis.exceptions.OutOfMemoryError),
    ):
        fill(valkey)


def fill(valkey: ValkeyProcess) -> None:
    for n in range(100):
        ask(valkey, "SET", n, "x" * 50_000)


def test_further_arguments_make_a_replica() -> None:
    with (
        ValkeyProcess() as primary,
        ValkeyProcess("--replicaof", "127.0.0.1", str(primary.port)) as replica,
    ):
        ask(primary, "SET", "x", 1)
        until(lambda: ask(replica, "GET", "x") == b"1", "it was not replicated")

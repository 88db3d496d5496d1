"""Signals whose handlers raise, wherever they come in a guard: nothing is left that is held."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from fencing import Guard, RedisLockService
from fencing.core import acquiring_all, performing, plan, several, slots
from fencing.guard import base, shells
from fencing.hooks import admission, ambient, database
from fencing.lease import blocks, group, leases
from fencing.locks.redis.scripts import keys_of
from fencing.postgres import PsycopgGuard, connections
from fencing.postgres import admission as bare_admission
from fencing.postgres import base as bare_base
from fencing.postgres import databases as bare_databases
from fencing.postgres import guard as bare_guard
from tests.support.interrupting import interrupted_before_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import redis
    from sqlalchemy import Engine

    from tests.support.bank import Bank

# What lock services and leases do besides is interrupted in tests/locks.
MODULES = (
    acquiring_all, admission, ambient, bare_admission, bare_base, bare_databases, bare_guard,
    base, blocks, connections, database, group, leases, performing, plan, several, shells, slots,
)  # fmt: skip


@pytest.fixture
def locks(redis_url: str, redis_namespace: str) -> Iterator[RedisLockService]:
    with RedisLockService.from_url(redis_url, namespace=redis_namespace) as locks:
        yield locks


@pytest.fixture(params=["sqlalchemy", "psycopg"])
def any_guard(
    request: pytest.FixtureRequest, locks: RedisLockService, engine: Engine, bank: Bank
) -> Iterator[Any]:
    if request.param == "sqlalchemy":
        with Guard(locks, engine) as guard:
            yield guard
    else:
        with PsycopgGuard(locks, bank.plain_url) as guard:
            yield guard


def use_a_block(guard: Any, resource: str) -> None:
    with guard.acquire(resource, ttl=60):
        pass


def re_enter(guard: Any, resource: str) -> None:
    with guard.acquire(resource, ttl=60), guard.acquire(resource, ttl=60, reentrant=True):
        pass


def use_a_group(guard: Any, resource: str) -> None:
    with guard.acquire_all([f"{resource}:2", resource], ttl=60):
        pass


def admit(guard: Any, resource: str) -> None:
    with guard.locks.acquire(resource, ttl=60) as lease:
        guard.admit(lease)


def call_a_holding_function(guard: Any, resource: str) -> None:
    @guard.holding("{name}", ttl=60)
    def work(name: str) -> str:
        return name

    work(resource)


def suspend(guard: Any, resource: str) -> None:
    with guard.acquire(resource, ttl=60), guard.suspended():
        pass


BARE = [use_a_block, re_enter, use_a_group, admit]
WITH_AMBIENCE = [call_a_holding_function, suspend]


def check_that_nothing_is_held(guard: Any) -> None:
    for each in guard.databases:
        permits = each.connections.slots if hasattr(each, "connections") else each.admissions._slots
        assert permits.taken == 0, "a permit is missing for ever"
        if not hasattr(each, "connections"):
            assert each.admissions._root.pool.checkedout() == 0
            assert ambient.presented_leases(each) == ()
            assert not ambient.is_suspended(each)


# A connection whose giving back was interrupted is closed by the collector, as psycopg tells.
@pytest.mark.filterwarnings("ignore:.*was deleted while still open:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("use", [*BARE, *WITH_AMBIENCE])
def test_an_interrupt_before_any_line_leaves_nothing(
    use: Callable[[Any, str], None],
    any_guard: Any,
    resource: str,
    redis_client: redis.Redis,
    redis_namespace: str,
) -> None:
    if use in WITH_AMBIENCE and not isinstance(any_guard, Guard):
        pytest.skip("nothing is ambient")
    use(any_guard, resource)  # connected, and the scripts are known
    keys = [keys_of(redis_namespace, name)[0] for name in (resource, f"{resource}:2")]
    number, interrupted = 0, True
    while interrupted:
        number += 1
        interrupted = False
        with interrupted_before_line(number, *MODULES) as lines:
            try:
                use(any_guard, resource)
            except KeyboardInterrupt:
                interrupted = True
        try:
            assert not redis_client.exists(*keys)
            check_that_nothing_is_held(any_guard)
        except AssertionError as error:
            error.add_note(str((number, lines[-4:])))
            raise
    assert number > 50
    gc.collect()  # here, where what a circle holds may be warned of

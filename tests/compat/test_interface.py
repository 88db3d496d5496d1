"""What the two classes have in common with redis-py's, with each other, and with nobody."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
import redis.asyncio
import redis.asyncio.lock
import redis.lock

from fencing.compat.redis import AsyncFencedLock, FencedLock


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(FencedLock, redis.lock.Lock), (AsyncFencedLock, redis.asyncio.lock.Lock)],
)
def test_each_is_one_of_redis_pys_own_with_the_same_parameters(ours: type, theirs: type) -> None:
    assert issubclass(ours, theirs)
    for name, method in inspect.getmembers(theirs, callable):
        if not name.startswith("_"):
            mine = inspect.signature(getattr(ours, name)).parameters
            assert list(mine) == list(inspect.signature(method).parameters), name


def test_both_add_the_same() -> None:
    def added(ours: type, theirs: type) -> dict[str, list[str]]:
        return {
            name: list(inspect.signature(value).parameters) if callable(value) else []
            for name, value in inspect.getmembers(ours)
            if not name.startswith("_") and not hasattr(theirs, name)
        }

    assert added(FencedLock, redis.lock.Lock) == {
        "lease": [],
        "raise_token": ["self", "floor"],
        "resource": [],
    }
    assert added(AsyncFencedLock, redis.asyncio.lock.Lock) == added(FencedLock, redis.lock.Lock)


@pytest.mark.parametrize(
    ("lock_class", "client", "goes_with_it"),
    [
        (FencedLock, redis.asyncio.Redis(), "AsyncFencedLock"),
        (AsyncFencedLock, redis.Redis(), "FencedLock"),
    ],
    ids=["asyncio's client", "a sync client"],
)
def test_a_client_of_the_other_kind_is_refused_at_once(
    lock_class: Any, client: Any, goes_with_it: str
) -> None:
    with pytest.raises(TypeError, match=f"^{lock_class.__name__} .*={goes_with_it}$"):
        client.lock("name", timeout=10, lock_class=lock_class)
    with pytest.raises(TypeError, match=f"={goes_with_it}$"):
        lock_class(redis=client, name="name", timeout=10)


def test_nobody_imports_it_who_does_not_ask_for_it() -> None:
    code = (
        "import sys, fencing, fencing.guard, fencing.locks; print('fencing.compat' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

"""What the two classes have in common with redis-py's, with each other, and with nobody."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
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


def test_nobody_imports_it_who_does_not_ask_for_it() -> None:
    code = (
        "import sys, fencing, fencing.guard, fencing.locks; print('fencing.compat' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

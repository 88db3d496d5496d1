"""Locks of every kind, on names of the test's own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.proxy import TcpProxy
from tests.compat.kinds import Locks
from tests.support.banking import *  # noqa: F403 - pytest collects fixtures by name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator


@pytest.fixture
def name(redis_namespace: str) -> str:
    return f"{redis_namespace}:lock"


@pytest.fixture
def fence_key(name: str) -> str:
    """The hash beside the lock."""
    return f"fencing:redis-py:{{{name}}}"


@pytest.fixture(params=["sync", "async"])
def flavour(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def proxy(redis_url: str) -> Iterator[TcpProxy]:
    with TcpProxy.to(redis_url) as proxy:
        yield proxy


@pytest.fixture
async def locks_at() -> AsyncIterator[Any]:
    """Makes makers of locks: ``locks_at(flavour, whose, url, **settings)``."""
    async with contextlib.AsyncExitStack() as stack:

        def make(flavour: str, whose: str, url: str, **settings: Any) -> Locks:
            locks = Locks(flavour, whose, url, **settings)
            stack.push_async_callback(locks.aclose)
            return locks

        yield make


@pytest.fixture
def locks(locks_at: Any, flavour: str, redis_url: str) -> Locks:
    """Makes our locks."""
    return locks_at(flavour, "fencing", redis_url)

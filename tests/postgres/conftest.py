"""A guarded bank, and both sides of psycopg."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.banking import *  # noqa: F403 - pytest collects fixtures by name
from tests.support.sides import AsyncSide, SyncSide

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.support.bank import Bank


@pytest.fixture(params=[SyncSide, AsyncSide], ids=["sync", "async"])
async def side(request: pytest.FixtureRequest) -> AsyncIterator[Any]:
    """One of the two; what it has made is closed at the end."""
    side = request.param()
    yield side
    await side.close()


@pytest.fixture
async def connection(side: Any, bank: Bank) -> Any:
    """A connection to the bank."""
    return await side.connect(bank.plain_url)


@pytest.fixture
def locks(side: Any) -> Any:
    """A lock service that excludes nobody."""
    return side.Locks()


@pytest.fixture
def guard(side: Any, locks: Any, bank: Bank) -> Any:
    """A guard of the bank."""
    return side.guard(locks, bank.plain_url)


@pytest.fixture
async def lease(side: Any, guard: Any, resource: str) -> Any:
    """An admitted lease on the account, whose block has not been opened."""
    return await side.do(guard.acquire(resource))

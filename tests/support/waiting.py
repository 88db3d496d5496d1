"""Waiting for what has happened, where there is an event, and where nobody tells."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from fencing.embedded import asking

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = 20


async def happened(event: Any) -> None:
    """Wait in asyncio for an event that another thread sets, such as a proxy's."""
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, event.wait, SECONDS), "it has not happened"


def until(condition: Callable[[], object]) -> None:
    """Wait until something is so that nobody tells of."""
    asking.until(lambda: bool(condition()), "it did not come about")


def until_waiting(locks: Any, number: int, resource: str = "r") -> None:
    """Wait until so many wait for a resource, by what a lock service without asyncio tells."""
    until(lambda: locks.inspect(resource).waiters >= number)

"""Redlock services over nodes of a test, both kinds behind the asynchronous interface."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from fencing.locks.redlock import AsyncRedlockService, RedlockService
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

__all__ = ["service", "url_of"]


def url_of(nodes: Sequence[Any]) -> str:
    """The address of servers, or of proxies to them."""
    return f"redlock://{','.join(f'127.0.0.1:{node.port}' for node in nodes)}/0"


@contextlib.asynccontextmanager
async def service(
    kind: str, nodes: Sequence[Any], namespace: str, **settings: Any
) -> AsyncIterator[Any]:
    """A "sync" or "async" service over these nodes."""
    url = url_of(nodes)
    if kind == "sync":
        with RedlockService.from_url(url, namespace=namespace, **settings) as locks:
            yield ThreadedLocks(locks)
    else:
        async with AsyncRedlockService.from_url(url, namespace=namespace, **settings) as locks:
            yield locks

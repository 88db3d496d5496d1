"""Redlock services over nodes of a test, both kinds behind the asynchronous interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.contract.facade import service_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractAsyncContextManager

__all__ = ["service", "url_of"]


def url_of(nodes: Sequence[Any]) -> str:
    """The address of servers, or of proxies to them."""
    return f"redlock://{','.join(f'127.0.0.1:{node.port}' for node in nodes)}/0"


def service(
    kind: str, nodes: Sequence[Any], namespace: str, **settings: Any
) -> AbstractAsyncContextManager[Any]:
    """A "sync" or "async" service over these nodes."""
    return service_at(kind, url_of(nodes), namespace=namespace, **settings)

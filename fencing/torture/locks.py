"""Who grants leases to a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fencing

if TYPE_CHECKING:
    from fencing.torture.settings import Plan

__all__ = ["connect", "connect_async"]


def connect(plan: Plan) -> Any:  # noqa: ANN401 - any lock service that is a context manager
    """The lock service of a worker."""
    return fencing.connect(plan.locks_url)


def connect_async(plan: Plan) -> Any:  # noqa: ANN401 - as above
    """:func:`connect` for asyncio."""
    return fencing.connect_async(plan.locks_url)

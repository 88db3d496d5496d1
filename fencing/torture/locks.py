"""Who grants leases to a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fencing

if TYPE_CHECKING:
    from fencing.torture.settings import Plan

__all__ = ["ADVERSARY", "connect", "connect_async"]

ADVERSARY = "adversary:"
"""The address of a lock service inside the worker; see :mod:`fencing.torture.adversary`."""


def connect(plan: Plan) -> Any:  # noqa: ANN401 - any lock service that is a context manager
    """The lock service of a worker."""
    if plan.locks_url == ADVERSARY:
        from fencing.torture.adversary import Adversary  # noqa: PLC0415 - only who needs it

        return Adversary(plan.seed)
    return fencing.connect(plan.locks_url)


def connect_async(plan: Plan) -> Any:  # noqa: ANN401 - as above
    """:func:`connect` for asyncio."""
    if plan.locks_url == ADVERSARY:
        from fencing.torture.adversary import AsyncAdversary  # noqa: PLC0415 - as above

        return AsyncAdversary(plan.seed)
    return fencing.connect_async(plan.locks_url)

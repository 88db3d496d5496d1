"""Lock services that give up sooner, for tests of what they do then."""

from __future__ import annotations

import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING
from unittest import mock

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["hurried"]

SECONDS = 0.6
"""A first attempt, a pause and a second one still have room in it."""

# Of 2 seconds each; modules that import one have it under its name.
LIMITS = ("ASKING_SECONDS", "ATTEMPT_SECONDS", "NO_WAIT_SECONDS", "RELEASE_SECONDS")


@contextmanager
def hurried() -> Iterator[None]:
    """Lock services give up after 0.6 seconds where they would after 2.

    For servers that are silent or not there: one that answers is to have its usual time.
    """
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("fencing.locks."):
                for limit in LIMITS:
                    if hasattr(module, limit):
                        stack.enter_context(mock.patch.object(module, limit, SECONDS))
        yield

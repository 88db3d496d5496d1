"""Nodes of a Redlock for the tests of a module, and of a test's own."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import pytest

from fencing.embedded import ValkeyProcess

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def own_nodes() -> Iterator[list[ValkeyProcess]]:
    """Three nodes that the tests of a module share, and leave as they are."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ValkeyProcess()) for _ in range(3)]


@pytest.fixture
def five_nodes() -> Iterator[list[ValkeyProcess]]:
    """Five nodes of this test's own, to kill, stop and start again."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ValkeyProcess()) for _ in range(5)]


@pytest.fixture
def namespace() -> str:
    return f"test-{uuid.uuid4().hex}"

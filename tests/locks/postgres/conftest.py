"""A guarded bank whose lock service is its own database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencing import Guard
from fencing.locks.postgres import PostgresLockService
from tests.support.banking import *  # noqa: F403 - pytest collects fixtures by name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from tests.support.bank import Bank


@pytest.fixture
def locks(bank: Bank) -> Iterator[PostgresLockService]:
    with PostgresLockService(bank.url) as locks:
        yield locks


@pytest.fixture
def guard(locks: PostgresLockService, engine: Engine) -> Guard:
    return Guard(locks, engine)

"""One PostgreSQL and one Valkey for all runs of a process; each run has a database of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencing.embedded import PostgresProcess
from fencing.torture.stage import POSTGRES_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def torture_postgres() -> Iterator[PostgresProcess]:
    with PostgresProcess(POSTGRES_SETTINGS, in_memory=True) as postgres:
        yield postgres

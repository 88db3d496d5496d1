"""Running operations as a migration does, without files."""

from __future__ import annotations

import io
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import NullPool, create_engine

import fencing.migration  # noqa: F401 -- registers the operations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Engine

    Work = Callable[[Operations], object]


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    """An engine on an empty database."""
    engine = create_engine(database, poolclass=NullPool)
    yield engine
    engine.dispose()


@pytest.fixture
def migrate(engine: Engine) -> Callable[[Work], None]:
    """Runs operations on the empty database, in one transaction."""

    def migrate(work: Work) -> None:
        with engine.begin() as connection, operations(connection) as op:
            work(op)

    return migrate


@contextmanager
def operations(connection: object) -> Iterator[Operations]:
    """Alembic's operations on a connection, as in a migration."""
    with Operations.context(MigrationContext.configure(connection)) as op:
        yield op


def offline(work: Work, dialect: str = "postgresql") -> str:
    """The script that these operations print with ``--sql``."""
    output = io.StringIO()
    context = MigrationContext.configure(
        dialect_name=dialect, opts={"as_sql": True, "output_buffer": output}
    )
    with Operations.context(context) as op:
        work(op)
    return output.getvalue()

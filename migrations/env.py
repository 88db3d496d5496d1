"""Alembic environment of schema ``fencing``.

Run by :func:`fencing.migration.install`, which passes its connection, or by hand::

    export FENCING_DATABASE_URL=postgresql+psycopg://localhost/bank
    alembic -c migrations/alembic.ini upgrade head
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from alembic import context
from sqlalchemy import Connection, NullPool, create_engine

from fencing.migration.environment import LOCK, VERSION_TABLE

if TYPE_CHECKING:
    from alembic.runtime.migration import MigrationInfo


def run_offline() -> None:
    context.configure(dialect_name="postgresql", literal_binds=True, version_table=VERSION_TABLE)
    with context.begin_transaction():
        context.run_migrations()


def run_online(connection: Connection) -> None:
    applied: list[str] = context.config.attributes.setdefault("applied", [])

    def note(*, step: MigrationInfo, **_: object) -> None:
        # The lower end of a step is "down", whichever way it went; ours have one upper end.
        applied.extend(step.up_revision_ids)

    context.configure(
        connection=connection,
        version_table=VERSION_TABLE,
        on_version_apply=note,  # type: ignore[arg-type]  # called with keywords, and typed without
    )
    with context.begin_transaction():
        connection.exec_driver_sql(LOCK)
        context.run_migrations()


def url() -> str:
    configured = os.environ.get("FENCING_DATABASE_URL") or context.config.get_main_option(
        "sqlalchemy.url"
    )
    if not configured:
        raise SystemExit("set FENCING_DATABASE_URL, or sqlalchemy.url in alembic.ini")
    return configured


given = context.config.attributes.get("connection")
if context.is_offline_mode():
    run_offline()
elif given is not None:
    run_online(given)
else:
    engine = create_engine(url(), poolclass=NullPool, isolation_level="READ COMMITTED")
    with engine.connect() as own:
        run_online(own)

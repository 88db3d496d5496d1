"""Makes the tables, their history, and their guards."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import insert

from fencing.migration import install
from fencing.schema import ddl
from fencing.torture.tables import (
    INITIAL_BALANCE,
    PARTS,
    ROLE,
    SCHEMA,
    TEMPLATES,
    Account,
    Register,
)

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from fencing.torture.settings import Settings

__all__ = ["create_tables"]


def create_tables(engine: Engine, settings: Settings) -> None:
    """Make the tables, the history, and, if it is to be guarded, the guards.

    Args:
        engine: Of an empty database, as its owner, without a guard.
        settings: How many rows there are of each, and whether they are guarded.
    """
    with engine.begin() as connection:
        for statement in _statements("history.sql"):
            connection.exec_driver_sql(statement)
        connection.execute(
            insert(Register),
            [
                {"id": number + 1, "part": part, "value": 0}
                for number in range(settings.registers)
                for part in range(PARTS)
            ],
        )
        connection.execute(
            insert(Account),
            [
                {"id": number + 1, "balance": INITIAL_BALANCE, "version": 0}
                for number in range(settings.accounts)
            ],
        )
        for statement in (*_statements("watch.sql"), *_role()):
            connection.exec_driver_sql(statement)
        if not settings.guarded:
            return
        install(connection)
        for table, template in TEMPLATES.items():
            for statement in ddl.fence_table(table, template, schema=SCHEMA):
                connection.exec_driver_sql(statement)
        for statement in _statements("watch_fence.sql"):
            connection.exec_driver_sql(statement)


def _role() -> list[str]:
    return [
        # Roles are the whole server's, which may have the database of another run.
        f"""
        DO $torture$ BEGIN
            CREATE ROLE {ROLE} LOGIN;
        EXCEPTION WHEN duplicate_object THEN
            NULL;
        END $torture$
        """,
        f"GRANT USAGE ON SCHEMA torture TO {ROLE}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA torture TO {ROLE}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA torture TO {ROLE}",
    ]


def _statements(name: str) -> list[str]:
    text = files("fencing.torture").joinpath("sql", name).read_text("utf-8")
    return [part.strip() for part in text.split("\n--;\n")]

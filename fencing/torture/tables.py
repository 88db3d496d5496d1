"""The tables that are worked on, and their guards."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING

from sqlalchemy import insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from fencing import fenced_by
from fencing.migration import install
from fencing.schema import ddl

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from fencing.torture.settings import Settings

__all__ = ["INITIAL_BALANCE", "TEMPLATES", "Account", "Element", "Register", "create_tables"]

INITIAL_BALANCE = 1000
PARTS = 2
"""Rows of one register; one lease covers both."""
ROLE = "torture_worker"
"""Who the workers are: a role that may neither change a guard nor the fence."""

TEMPLATES = {
    "register": "register:{id}",
    "element": "set:{set_id}",
    "account": "account:{id}",
}
"""Which lease a row needs, by table."""


class Base(DeclarativeBase):
    """Tables in schema ``torture``."""


@fenced_by(TEMPLATES["register"])
class Register(Base):
    """A number that is only ever raised by one."""

    __tablename__ = "register"
    __table_args__ = {"schema": "torture"}  # noqa: RUF012 - SQLAlchemy's form
    id: Mapped[int] = mapped_column(primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int]


@fenced_by(TEMPLATES["element"])
class Element(Base):
    """An element of a set: the next number each, the oldest are deleted."""

    __tablename__ = "element"
    __table_args__ = {"schema": "torture"}  # noqa: RUF012 - as above
    id: Mapped[int] = mapped_column(primary_key=True)
    set_id: Mapped[int]
    n: Mapped[int]


@fenced_by(TEMPLATES["account"])
class Account(Base):
    """Money, and how often it was moved."""

    __tablename__ = "account"
    __table_args__ = {"schema": "torture"}  # noqa: RUF012 - as above
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]
    version: Mapped[int]


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
            for statement in ddl.fence_table(table, template, schema="torture"):
                connection.exec_driver_sql(statement)
        for statement in _statements("watch_fence.sql"):
            connection.exec_driver_sql(statement)


def _role() -> list[str]:
    return [
        f"CREATE ROLE {ROLE} LOGIN",
        f"GRANT USAGE ON SCHEMA torture TO {ROLE}",
        f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA torture TO {ROLE}",
        f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA torture TO {ROLE}",
    ]


def _statements(name: str) -> list[str]:
    text = files("fencing.torture").joinpath("sql", name).read_text("utf-8")
    return [part.strip() for part in text.split("\n--;\n")]

"""The tables that are worked on, as a worker sees them."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from fencing import fenced_by

__all__ = [
    "INITIAL_BALANCE",
    "PARTS",
    "ROLE",
    "SCHEMA",
    "TEMPLATES",
    "Account",
    "Element",
    "Register",
]

SCHEMA = "torture"
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
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012 - SQLAlchemy's form
    id: Mapped[int] = mapped_column(primary_key=True)
    part: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[int]


@fenced_by(TEMPLATES["element"])
class Element(Base):
    """An element of a set: the next number each, the oldest are deleted."""

    __tablename__ = "element"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012 - as above
    id: Mapped[int] = mapped_column(primary_key=True)
    set_id: Mapped[int]
    n: Mapped[int]


@fenced_by(TEMPLATES["account"])
class Account(Base):
    """Money, and how often it was moved."""

    __tablename__ = "account"
    __table_args__ = {"schema": SCHEMA}  # noqa: RUF012 - as above
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]
    version: Mapped[int]

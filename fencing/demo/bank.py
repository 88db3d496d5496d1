"""The bank: one table, two customers."""

from __future__ import annotations

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

__all__ = ["OPENING_BALANCE", "RESOURCE", "WITHDRAWALS", "Account", "Base"]

OPENING_BALANCE = 100

WITHDRAWALS = {"A": 30, "B": 20}
"""Who withdraws how much. No two sums of these are equal, so that a balance tells who is in it."""

RESOURCE = "account:{id}"
"""Which lease a row of the table needs."""


class Base(DeclarativeBase):
    """The demonstration's tables."""


class Account(Base):
    """An account.

    It is not declared with ``fenced_by``: that would notice a missing guard, and what is shown
    here rests on the database alone.
    """

    __tablename__ = "accounts"

    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int]

"""Reading and writing the rows, in SQL and through the ORM."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
from sqlalchemy import delete, func, select, text

from fencing.torture.tables import Account, Element, Register

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from sqlalchemy.orm import Session

__all__ = ["KEPT", "OrmRows", "Rows", "SqlRows", "as_psycopg"]

KEPT = 20
"""How many elements of a set are kept; older ones are deleted."""

SAY = "SELECT set_config('torture.transaction', :said, true)"
REGISTER = "SELECT value FROM torture.register WHERE id = :id AND part = :part"
SET_REGISTER = "UPDATE torture.register SET value = :value WHERE id = :id AND part = :part"
LARGEST = "SELECT coalesce(max(n), 0) FROM torture.element WHERE set_id = :id"
APPEND = "INSERT INTO torture.element (set_id, n) VALUES (:id, :n)"
TRIM = "DELETE FROM torture.element WHERE set_id = :id AND n <= :n"
ACCOUNT = "SELECT balance, version FROM torture.account WHERE id = :id"
SET_ACCOUNT = "UPDATE torture.account SET balance = :balance, version = :version WHERE id = :id"

MUCH = "SELECT repeat('x', 2500) FROM generate_series(1, 4000)"


class Rows(Protocol):
    """The rows, as one transaction sees them."""

    def say(self, name: str, leases: Mapping[str, tuple[int, str]]) -> None:
        """Tell the history which transaction this is, and its token and holder by resource."""

    def register(self, number: int, part: int) -> int:
        """A register's value."""

    def set_register(self, number: int, part: int, value: int) -> None:
        """Write a register, whatever it is by now."""

    def largest(self, number: int) -> int:
        """The largest element of a set; 0 if it is empty."""

    def append(self, number: int, element: int) -> None:
        """Insert an element, and delete what is older than `KEPT`."""

    def account(self, number: int) -> tuple[int, int]:
        """An account's balance and version."""

    def set_account(self, number: int, balance: int, version: int) -> None:
        """Write an account, whatever it is by now."""

    def read_much(self, in_the_middle: Callable[[], None]) -> None:
        """Read more than the buffers between us and the server hold; call when it has begun."""


class SqlRows:
    """The rows in SQL.

    Args:
        execute: Executes a statement with named parameters (``:name``); returns its rows.
        driver: The driver's own connection, for what is read row by row; ``None``: all at once.
    """

    def __init__(
        self,
        execute: Callable[[str, dict[str, Any]], Sequence[Any]],
        driver: psycopg.Connection[Any] | None = None,
    ) -> None:
        self._execute = execute
        self._driver = driver

    def say(self, name: str, leases: Mapping[str, tuple[int, str]]) -> None:
        """See :class:`Rows`."""
        self._execute(SAY, {"said": _said(name, leases)})

    def register(self, number: int, part: int) -> int:
        """See :class:`Rows`."""
        return int(self._execute(REGISTER, {"id": number, "part": part})[0][0])

    def set_register(self, number: int, part: int, value: int) -> None:
        """See :class:`Rows`."""
        self._execute(SET_REGISTER, {"id": number, "part": part, "value": value})

    def largest(self, number: int) -> int:
        """See :class:`Rows`."""
        return int(self._execute(LARGEST, {"id": number})[0][0])

    def append(self, number: int, element: int) -> None:
        """See :class:`Rows`."""
        self._execute(APPEND, {"id": number, "n": element})
        self._execute(TRIM, {"id": number, "n": element - KEPT})

    def account(self, number: int) -> tuple[int, int]:
        """See :class:`Rows`."""
        balance, version = self._execute(ACCOUNT, {"id": number})[0]
        return int(balance), int(version)

    def set_account(self, number: int, balance: int, version: int) -> None:
        """See :class:`Rows`."""
        self._execute(SET_ACCOUNT, {"id": number, "balance": balance, "version": version})

    def read_much(self, in_the_middle: Callable[[], None]) -> None:
        """See :class:`Rows`."""
        if self._driver is None:
            self._execute(MUCH, {})
            in_the_middle()
        else:
            stream(self._driver, in_the_middle)


class OrmRows:
    """The rows as objects of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def say(self, name: str, leases: Mapping[str, tuple[int, str]]) -> None:
        """See :class:`Rows`."""
        self._session.execute(text(SAY), {"said": _said(name, leases)})

    def register(self, number: int, part: int) -> int:
        """See :class:`Rows`."""
        return self._session.get_one(Register, (number, part)).value

    def set_register(self, number: int, part: int, value: int) -> None:
        """See :class:`Rows`."""
        self._session.get_one(Register, (number, part)).value = value
        self._session.flush()

    def largest(self, number: int) -> int:
        """See :class:`Rows`."""
        largest = select(func.max(Element.n)).where(Element.set_id == number)
        return self._session.scalar(largest) or 0

    def append(self, number: int, element: int) -> None:
        """See :class:`Rows`."""
        self._session.add(Element(set_id=number, n=element))
        self._session.flush()
        old = delete(Element).where(Element.set_id == number, Element.n <= element - KEPT)
        self._session.execute(old)

    def account(self, number: int) -> tuple[int, int]:
        """See :class:`Rows`."""
        account = self._session.get_one(Account, number)
        return account.balance, account.version

    def set_account(self, number: int, balance: int, version: int) -> None:
        """See :class:`Rows`."""
        account = self._session.get_one(Account, number)
        account.balance, account.version = balance, version
        self._session.flush()

    def read_much(self, in_the_middle: Callable[[], None]) -> None:
        """See :class:`Rows`."""
        driver = self._session.connection().connection.driver_connection
        if isinstance(driver, psycopg.Connection):
            stream(driver, in_the_middle)
        else:
            self._session.execute(text(MUCH))
            in_the_middle()


def stream(driver: psycopg.Connection[Any], in_the_middle: Callable[[], None]) -> None:
    """Read rows as they come, so that the server waits for whoever stops reading."""
    with driver.cursor() as cursor:
        rows = cursor.stream(MUCH)
        next(rows)
        in_the_middle()
        for _ in rows:
            pass


def as_psycopg(statement: str) -> str:
    """A statement with its parameters in psycopg's form."""
    return re.sub(r":(\w+)", r"%(\1)s", statement)


def _said(name: str, leases: Mapping[str, tuple[int, str]]) -> str:
    return json.dumps({"name": name, "leases": leases})

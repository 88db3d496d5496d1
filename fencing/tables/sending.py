"""Sends DDL as it is, all of it or none."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from fencing.tables.refusals import sqlstate, translated

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import Connection

__all__ = ["IN_A_TRANSACTION", "in_transaction", "send", "transaction"]

IN_A_TRANSACTION = ("SAVEPOINT fencing_transaction", "RELEASE SAVEPOINT fencing_transaction")
"""What only a transaction block takes, and what changes nothing there."""

_NO_TRANSACTION = "25P01"
# Nothing is a parameter, so no driver may look for one: a percent sign is a percent sign.
_AS_IT_IS = {"no_parameters": True}


def send(connection: Connection, statements: Iterable[str]) -> None:
    """Send every statement, all or none, also where each would be a transaction of its own.

    Raises:
        ValueError, FencingError: See :func:`fencing.tables.refusals.translated`.
    """
    several = list(statements)
    with translated():
        if len(several) == 1:
            _send_one(connection, several[0])
            return
        with transaction(connection):
            for statement in several:
                _send_one(connection, statement)


@contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    """The transaction in progress, or one of this block's own where the connection has none.

    On a connection in AUTOCOMMIT what SQLAlchemy calls a transaction is none.
    """
    if in_transaction(connection):
        yield
        return
    _send_one(connection, "BEGIN")
    try:
        yield
    except BaseException:
        _send_one(connection, "ROLLBACK")
        raise
    _send_one(connection, "COMMIT")


def in_transaction(connection: Connection) -> bool:
    """Whether the server has a transaction block open, whatever SQLAlchemy believes."""
    try:
        for statement in IN_A_TRANSACTION:
            _send_one(connection, statement)
    except DBAPIError as error:
        if sqlstate(error) == _NO_TRANSACTION:
            return False
        raise
    return True


def _send_one(connection: Connection, statement: str) -> None:
    connection.exec_driver_sql(statement, execution_options=_AS_IT_IS).close()

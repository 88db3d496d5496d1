"""What the server's refusals of DDL mean, and how any failure reads in one line."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fencing.errors import FencingError, FencingUsageError, TableBusyError
from fencing.schema import names
from fencing.schema.refusals import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["describe", "sqlstate", "translated"]

_INSUFFICIENT_PRIVILEGE = "42501"
# A function is one of ours, then: nothing else is called here. A table may be the user's.
_OURS = re.compile(rf"function|schema {names.SCHEMA}\b")

_USAGE = frozenset(
    {
        names.ALREADY_FENCED,
        names.NEWER_SCHEMA,
        names.NOT_FENCED,
        names.STILL_FENCED,
        names.UNFIT_USE,
    }
)


@contextmanager
def translated() -> Iterator[None]:
    """Let the refusals of our own DDL leave this block as errors of ours.

    Raises:
        ValueError: The template does not fit the table.
        FencingUsageError: The table is not fenced, or fenced already, or tables are still fenced,
            or the schema is newer than this package.
        TableBusyError: The table was not free in time.
        sqlalchemy.exc.DBAPIError: Everything else the server says, unchanged.
    """
    try:
        yield
    except DBAPIError as error:
        state = sqlstate(error)
        if state == names.TABLE_BUSY:
            facts = Refusal.read(error.orig or error).facts
            pids = facts.get("blocked_by", ())
            backends = (
                f" In the way: PostgreSQL backends {', '.join(map(str, pids))}." if pids else ""
            )
            raise TableBusyError(
                f"{_server_message(error)}{backends}",
                table=facts.get("table", ""),
                blocked_by=pids,
            ) from error
        if state == _INSUFFICIENT_PRIVILEGE and _OURS.search(_server_message(error)):
            raise FencingUsageError(
                f"{_server_message(error)}: this is for the owner of schema {names.SCHEMA}, or a "
                "member of its role; connect as one"
            ) from error
        if state == names.UNFIT_TEMPLATE:
            raise ValueError(_server_message(error)) from error
        if state in _USAGE:
            raise FencingUsageError(_server_message(error)) from error
        raise


def describe(error: BaseException) -> str | None:
    """A failure in one line for people, without its statement or a password.

    Returns:
        ``None`` for an exception that is none of the expected ones: let it be raised.
    """
    if isinstance(error, DBAPIError):
        return _server_message(error)
    if isinstance(error, FencingError | ValueError | TypeError | SQLAlchemyError | ImportError):
        return " ".join(str(error).split())
    return None


def sqlstate(error: DBAPIError) -> str | None:
    """The five characters, under either name that drivers give them."""
    return getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)


def _server_message(error: DBAPIError) -> str:
    """Message and hint, on one line."""
    diagnosis = getattr(error.orig, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or str(error.orig).partition("\n")[0]
    hint = getattr(diagnosis, "message_hint", None)
    return " ".join(message.split()) + (f". {' '.join(hint.split())}" if hint else "")

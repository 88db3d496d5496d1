"""Sets a resource's high-water mark forward by hand."""

from __future__ import annotations

from dataclasses import dataclass

from fencing.administration.connecting import engine_of
from fencing.errors import FencingUsageError, LockNotAcquiredError
from fencing.request import check_resource
from fencing.schema.ddl import check_lock_timeout
from fencing.schema.names import STALE
from fencing.schema.refusals import Refusal
from fencing.tables.found import Installed
from fencing.tables.refusals import sqlstate, translated

__all__ = ["Raised", "raise_fence"]

_LOCK_NOT_AVAILABLE = "55P03"

_LIMIT = "SELECT set_config('lock_timeout', CAST(:milliseconds AS text), true)"
_RAISE = "SELECT fencing.raise_fence(CAST(:resource AS text), CAST(:token AS bigint))"
# What its trigger has copied is what was replaced, whoever was admitted in between.
_BEFORE = "SELECT f.previous_token FROM fencing.fence AS f WHERE f.resource = :resource"


@dataclass(frozen=True, slots=True)
class Raised:
    """A mark that was set forward.

    Attributes:
        before: The mark that it replaces; of a resource without a fence its floor, maybe 0.
        after: The new mark.
    """

    before: int
    after: int


def raise_fence(url: str, resource: str, token: int, *, timeout: float = 10.0) -> Raised:
    """Set a resource's high-water mark forward; whoever holds it is overtaken.

    Admissions may raise a mark by at most 2^40 at a time; this may raise it to any token.

    Args:
        url: The database; its role must be a member of the owner of schema ``fencing``.
        resource: Which resource.
        token: Its new mark.
        timeout: Longest wait for open transactions that have written under a lease on it, and
            before that for a connection, in seconds; for the connection 2 at least, and 10 at most,
            unless the URL has a ``connect_timeout``.

    Raises:
        TypeError: The resource or the timeout is of the wrong type.
        ValueError: The URL, the resource or the timeout makes no sense.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The mark is there already, or beyond; or this role may not.
        LockNotAcquiredError: Open transactions were in the way; nothing was changed.
        sqlalchemy.exc.DBAPIError: The database cannot be reached, or refused.
    """
    from sqlalchemy import text  # noqa: PLC0415 -- `fencing --help` does without
    from sqlalchemy.exc import DBAPIError  # noqa: PLC0415 -- the same

    check_resource(resource)
    check_lock_timeout(timeout, "timeout")
    with engine_of(url, within=timeout) as engine, engine.connect() as connection:
        Installed.in_database(connection).require_current()
        try:
            with translated():
                connection.execute(text(_LIMIT), {"milliseconds": max(1, round(timeout * 1000))})
                connection.execute(text(_RAISE), {"resource": resource, "token": token})
        except DBAPIError as error:
            state = sqlstate(error)
            if state == STALE:
                mark = Refusal.read(error.orig or error).facts["current_token"]
                raise FencingUsageError(
                    f"the mark of {resource!r} is {mark}, and a fence only ever moves forward: "
                    f"pass a token above {mark}"
                ) from error
            if state == _LOCK_NOT_AVAILABLE:
                raise LockNotAcquiredError(
                    f"open transactions that have written under a lease on {resource!r} did not "
                    f"end within {timeout:g} s; nothing was changed: try again, or wait longer",
                    resource=resource,
                ) from error
            raise
        before = connection.execute(text(_BEFORE), {"resource": resource}).scalar_one()
        connection.commit()
        return Raised(before, token)

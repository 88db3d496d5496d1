"""What an error of PostgreSQL, or of the way to it, means for a lock service."""

from __future__ import annotations

import psycopg

from fencing.core.slots import NoSlotError
from fencing.errors import FencingError
from fencing.locks.asking import Trouble

__all__ = ["POSTGRES_ERRORS", "trouble_of"]

POSTGRES_ERRORS = (psycopg.Error, OSError, NoSlotError)
"""What can come out of a request because of PostgreSQL or the way to it."""

_SILENT = (
    "PostgreSQL did not answer in time: see if it or the network is overloaded, or a table of "
    "schema fencing locked; then try again"
)
_STANDBY = (
    "this PostgreSQL is read-only, a standby perhaps: connect to the primary, for instance with "
    "target_session_attrs=read-write in the address"
)

# By SQLSTATE, or its class: whether to try again, and what it means.
_MEANINGS: dict[str, tuple[bool, str]] = {
    "25006": (False, _STANDBY),
    "0A000": (False, _STANDBY),
    "42501": (
        False,
        (
            "the role lacks a right: it needs USAGE on schema fencing and EXECUTE on its functions "
            "(docs/how-to/roles.md has the list)"
        ),
    ),
    "53300": (
        True,
        (
            "PostgreSQL has no connection left (max_connections): allow more, or let fewer "
            "services have fewer of them"
        ),
    ),
    "55P03": (True, _SILENT),
    "57014": (True, _SILENT),
    "57P03": (True, "PostgreSQL is starting or stopping: try again when it is up"),
    "28": (False, "PostgreSQL wants other credentials: check the user and password of the address"),
    "3D": (False, "there is no such database: check the name of the address"),
    "40": (True, "PostgreSQL has ended the request in favour of another: try again"),
    "08": (True, "the connection to PostgreSQL was lost: try again"),
    "57": (True, "PostgreSQL has ended the connection: try again"),
}

# What a connection attempt is refused with has no SQLSTATE in libpq, but its words; those of the
# server begin so in most languages.
_FATAL = "FATAL:"
_NO_SUCH = "there is no such role or database: check the user and the database of the address"
_REFUSALS = {
    "does not exist": _NO_SUCH,
    "authentication failed": "check the user and the password of the address",
    "no password supplied": "give the address a password, or name a passfile",
    "pg_hba.conf": "it lets nobody in from here as this user: see its pg_hba.conf",
}


def trouble_of(error: BaseException, *, at: float) -> Trouble:
    """What an error means.

    Args:
        error: The error.
        at: When it came (:func:`fencing.clock.now`, seconds).
    """
    if isinstance(error, NoSlotError):
        return Trouble(
            "PostgreSQL was not asked, for all connections of the lock service were in use: allow "
            "more (max_connections), or let fewer callers ask at once",
            passing=True,
            at=at,
            busy=error.busy,
        )
    if isinstance(error, FencingError):
        return Trouble(str(error), passing=False, at=at)
    if isinstance(error, TimeoutError | psycopg.errors.ConnectionTimeout):
        return Trouble(_SILENT, passing=True, at=at)
    state = getattr(error, "sqlstate", None) or ""
    said = _said(error)
    for key in (state, state[:2]):
        if key in _MEANINGS:
            passing, help_ = _MEANINGS[key]
            return Trouble(f"{help_} ({said})", passing=passing, at=at)
    if state:
        return Trouble(f"PostgreSQL refused: {said} (SQLSTATE {state})", passing=False, at=at)
    refusal = next((what for words, what in _REFUSALS.items() if words in said), "")
    if refusal or _FATAL in said:
        what = f"PostgreSQL refused the connection{refusal and ': '}{refusal}"
    else:
        what = "PostgreSQL cannot be reached: see that it runs and the address is right"
    return Trouble(f"{what} ({said})", passing=not refusal, at=at)


def _said(error: BaseException) -> str:
    """An error's first line; of several hosts, a line of each."""
    first, *others = str(error).strip().splitlines() or [type(error).__name__]
    of_hosts = [line.removeprefix("- ") for line in others if line.startswith("- host")]
    return "; ".join(of_hosts) or first

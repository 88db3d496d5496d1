"""Where a lock service's connections lead: an address of libpq's or SQLAlchemy's, or a function."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Source = str | Callable[[], psycopg.Connection[Any]]
    AsyncSource = str | Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]

__all__ = ["address_of_engine", "check_source"]

# SQLAlchemy names a driver behind the dialect; what follows is as libpq reads it.
_DIALECT = re.compile(r"postgres(ql)?(\+\w+)?://", re.IGNORECASE)

_HIDDEN = "***"
"""What SQLAlchemy writes instead of a password."""


def check_source(source: Any, service: str) -> tuple[Any, str]:  # noqa: ANN401 - a Source of either kind
    """Check where connections come from.

    Returns:
        The address as libpq reads it, or the function; and the database's name, for messages.

    Raises:
        TypeError: It is neither.
        ValueError: An address that cannot be read.
    """
    if (render := getattr(source, "render_as_string", None)) is not None:
        source = render(hide_password=False)  # an SQLAlchemy URL
    if isinstance(source, str):
        address = _DIALECT.sub("postgresql://", source, count=1)
        try:
            facts = conninfo_to_dict(address)
        except psycopg.ProgrammingError:
            # What libpq says repeats parts of it, maybe of the password.
            raise ValueError(
                f"{service} was given an address that libpq cannot read: it looks like "
                "postgresql://user:password@host:5432/database?sslmode=require, what is special in "
                "a password is escaped (%40 for @), and what follows the ? is libpq's"
            ) from None
        if facts.get("password") == _HIDDEN:
            raise ValueError(
                f"{service} was given an address with {_HIDDEN} for a password, which is how "
                "SQLAlchemy hides it in str(engine.url): give engine.url itself, or use "
                f"{service}.from_engine(engine)"
            )
        host = facts.get("host") or facts.get("hostaddr") or "localhost"
        return address, f"{host}:{facts.get('port') or 5432}/{facts.get('dbname') or ''}"
    if hasattr(source, "url") and hasattr(source, "dialect"):
        raise TypeError(f"{service} takes an address; for an engine: {service}.from_engine(engine)")
    if callable(source):
        return source, f"the database of {getattr(source, '__qualname__', type(source).__name__)}()"
    raise TypeError(
        f"{service} takes an address such as 'postgresql://localhost/bank', or a function that "
        f"connects, not {type(source).__name__}"
    )


def address_of_engine(engine: Any, service: str) -> str:  # noqa: ANN401 - SQLAlchemy is not known here
    """The address of an SQLAlchemy engine's database.

    Raises:
        TypeError: It has no URL, or not one of PostgreSQL.
    """
    url = getattr(engine, "url", None)
    render = getattr(url, "render_as_string", None)
    if render is None or not str(getattr(url, "drivername", "")).startswith("postgresql"):
        raise TypeError(
            f"{service}.from_engine() takes an SQLAlchemy engine of a PostgreSQL database, not "
            f"{type(engine).__name__}"
        )
    address: str = render(hide_password=False)
    return address

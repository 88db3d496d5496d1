"""Engines from the URLs that commands are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy import URL

__all__ = ["check_dialect", "read_url"]

_DRIVER = "psycopg"
"""What every command connects with: this package requires it."""


def read_url(text: str | URL) -> URL:
    """The URL of a database, for psycopg, whichever driver of SQLAlchemy's it names.

    Raises:
        ValueError: It cannot be read, or is not one of PostgreSQL.
    """
    from sqlalchemy import make_url  # noqa: PLC0415 -- `fencing sql` does without

    try:
        url = make_url(text)
    except Exception:  # noqa: BLE001 -- whichever it is
        # Whatever it says may quote the URL, which may hold a password.
        raise ValueError(
            "not a database URL; it looks like postgresql://user:password@host:5432/database"
        ) from None
    if "@" in (url.host or ""):
        raise ValueError(
            "the database URL has more than one @: write one that belongs to the user or password "
            "as %40"
        )
    dialect = url.get_backend_name()
    if dialect == "postgres":  # what libpq and many hosting services call it
        dialect = "postgresql"
    check_dialect(dialect)
    return url.set(drivername=f"{dialect}+{_DRIVER}")


def check_dialect(name: str) -> None:
    """Raise ``ValueError`` unless it is PostgreSQL's."""
    if name != "postgresql":
        raise ValueError(f"only PostgreSQL can refuse writes by fencing token, not {name}")

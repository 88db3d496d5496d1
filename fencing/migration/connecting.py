"""Engines from the URLs that commands are given."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

__all__ = ["CONNECT_SECONDS", "check_dialect", "engine_at", "read_url"]

CONNECT_SECONDS = 10
"""How long a server may take to let a command in, unless libpq is told otherwise, in seconds."""

_LIVENESS = {
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
}
"""Settings of libpq's by which a server whose host is gone is noticed within a minute: seconds of
silence before the first probe and between them, their number, and milliseconds for what was sent to
be acknowledged. One that is at work for hours acknowledges."""

_LEAST_CONNECT_SECONDS = 2
"""Less than that is rounded up by libpq, in seconds."""

_DRIVER = "psycopg"
"""What every command connects with: this package requires it."""


def engine_at(url: str | URL, *, within: float = CONNECT_SECONDS) -> Engine:
    """An engine without a pool, which does not wait for a server that is gone or lets nobody in.

    What the URL says of libpq's ``keepalives_…`` and ``tcp_user_timeout`` goes before ours.

    Args:
        url: Names any driver or none; psycopg is used.
        within: How long connecting may take, in seconds, where neither the URL nor the environment
            has a ``connect_timeout`` of libpq's; at most `CONNECT_SECONDS`.

    Raises:
        ValueError: It cannot be read, or is not one of PostgreSQL.
    """
    import sqlalchemy as sa  # noqa: PLC0415 -- `fencing --help` does without

    engine = sa.create_engine(read_url(url), poolclass=sa.NullPool, hide_parameters=True)

    @sa.event.listens_for(engine, "do_connect")
    def connect(dialect: Any, _record: Any, arguments: Any, options: dict[str, Any]) -> Any:  # noqa: ANN401 - SQLAlchemy's
        given = options.get("connect_timeout") or os.environ.get("PGCONNECT_TIMEOUT")
        if not given:
            seconds = max(_LEAST_CONNECT_SECONDS, math.ceil(min(within, CONNECT_SECONDS)))
            options["connect_timeout"] = given = seconds
        options = {**_LIVENESS, **options}
        try:
            return dialect.connect(*arguments, **options)
        except dialect.dbapi.errors.ConnectionTimeout as error:
            raise type(error)(_silent(options, given)) from error

    return engine


def _silent(options: dict[str, Any], seconds: Any) -> str:  # noqa: ANN401 - a number, maybe in a text
    host = options.get("host") or os.environ.get("PGHOST") or "localhost"
    port = options.get("port") or os.environ.get("PGPORT") or 5432
    return (
        f'the server at "{host}", port {port}, did not let us in within {seconds} s: see that it '
        "is a PostgreSQL and not overloaded, and that no firewall is in the way; to wait longer, "
        "end the URL with ?connect_timeout=60"
    )


def read_url(text: str | URL) -> URL:
    """The URL of a database, for psycopg, whichever driver of SQLAlchemy's it names.

    Raises:
        ValueError: It cannot be read, or is not one of PostgreSQL.
    """
    from sqlalchemy import make_url  # noqa: PLC0415 -- `fencing sql` does without

    try:
        url = make_url(text)
    except ValueError:  # of the port; not told, for without a host it is the password
        raise ValueError(
            "the port in the database URL is no number; it looks like "
            "postgresql://user:password@host:5432/database"
        ) from None
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

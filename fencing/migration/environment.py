"""Runs the migrations that ship with this package, without an ``alembic.ini`` of the user's."""

from __future__ import annotations

import io
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fencing.errors import FencingUsageError
from fencing.migration.connecting import check_dialect, engine_at, read_url
from fencing.schema import ddl
from fencing.schema.names import SCHEMA
from fencing.tables.changing import upgrade
from fencing.tables.found import Installed, has_schema, is_ours

if TYPE_CHECKING:
    from collections.abc import Iterator

    from alembic.config import Config
    from sqlalchemy import URL, Connection, Engine

__all__ = [
    "LOCK",
    "VERSION_TABLE",
    "Brought",
    "bring_forward",
    "install",
    "install_script",
    "place",
    "uninstall",
    "versions_path",
]

VERSION_TABLE = "fencing_version"
"""Where :func:`install` records the revision; an application's own environment has its own."""

LOCK = "SELECT pg_advisory_xact_lock(1178944579, 0)"
"""Two processes that install at once: the second waits here, and finds it done. A number of our own
choice, in the two-number space of advisory locks, which no lock of a resource can meet."""

_PACKAGE = Path(__file__).resolve().parents[1]
# In the wheel, and in a checkout.
_LOCATIONS = (_PACKAGE / "_migrations", _PACKAGE.parent / "migrations")

# Alembic keeps the running environment in module globals: two threads would mix theirs up.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Brought:
    """What was done to bring schema ``fencing`` of a database forward.

    Attributes:
        applied: The revisions that were applied, oldest first.
        recorded: Whether `VERSION_TABLE` keeps them; it does not where the schema was installed
            another way.
    """

    applied: tuple[str, ...]
    recorded: bool = True


def install(target: str | URL | Engine | Connection) -> tuple[str, ...]:
    """Bring schema ``fencing`` of a database to the newest revision this package knows.

    Two processes may do so at the same time: one installs, the other waits and finds it done. A
    schema that was installed another way, by ``create_all()``, a migration or a script, is brought
    forward as well, without a moment in which a table is unguarded; it is not recorded, and stays
    theirs.

    Args:
        target: The database. A URL may name any driver or none (psycopg is used), and is
            connected to for this call only. On a connection with a transaction in progress
            everything happens in that transaction, and committing it is the caller's; under
            asyncio call ``await connection.run_sync(install)``.

    Returns:
        The revisions that were applied, oldest first; none when there was nothing to do.

    Raises:
        ValueError: The URL cannot be read, or is not one of PostgreSQL.
        FencingUsageError: The schema is somebody else's, or of a newer version.
        sqlalchemy.exc.DBAPIError: The database cannot be reached, or refused.
    """
    return bring_forward(target).applied


def bring_forward(target: str | URL | Engine | Connection) -> Brought:
    """:func:`install`, with the same arguments and errors; tells whether it is recorded, too."""
    from alembic import command  # noqa: PLC0415 -- imports autogenerate, which a plugin must not

    with _connected(target) as connection, _environment(connection=connection) as config:
        connection.exec_driver_sql(LOCK)
        if has_schema(connection) and not _is_recorded(connection):
            return Brought(_upgraded(connection), recorded=False)
        command.upgrade(config, "head")
        if not has_schema(connection):
            raise FencingUsageError(
                f'the table {VERSION_TABLE} says that schema "{SCHEMA}" is installed, but it is '
                f"gone; drop {VERSION_TABLE} and install again"
            )
        return Brought(tuple(config.attributes["applied"]))


def uninstall(target: str | URL | Engine | Connection) -> tuple[str, ...]:
    """Drop what :func:`install` has created, and with it every high-water mark.

    Args:
        target: The database, as :func:`install` takes it.

    Returns:
        The revisions that were undone, newest first; none when there was nothing to do.

    Raises:
        ValueError: The URL cannot be read, or is not one of PostgreSQL.
        FencingUsageError: A table is still fenced, or the schema was installed by other means,
            or by a newer version.
        sqlalchemy.exc.DBAPIError: The database cannot be reached, or refused.
    """
    from alembic import command  # noqa: PLC0415 -- imports autogenerate, which a plugin must not

    with _connected(target) as connection, _environment(connection=connection) as config:
        command.downgrade(config, "base")
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {VERSION_TABLE}")
        if has_schema(connection):
            raise FencingUsageError(
                f'schema "{SCHEMA}" of this database was not installed by `fencing install`; '
                "remove it the way it was installed, with op.uninstall_fencing() or "
                "`fencing sql --uninstall`"
            )
        return tuple(config.attributes["applied"])


def install_script() -> str:
    """What :func:`install` runs on an empty database, as a script for ``psql``."""
    from alembic import command  # noqa: PLC0415 -- imports autogenerate, which a plugin must not

    output = io.StringIO()
    with _environment(output=output) as config:
        command.upgrade(config, "head", sql=True)
    return output.getvalue()


def versions_path() -> Path:
    """Folder of our revisions, for ``version_locations`` of an application's Alembic environment.

    Its branch is labelled ``fencing``: ``alembic upgrade fencing@head``, and a migration that
    fences a table says ``depends_on = "fencing"``.
    """
    return _location() / "versions"


def place(url: str | URL) -> str:
    """Which database a URL means, in words, without its password."""
    parsed = read_url(url)
    host = f" on {parsed.host}" if parsed.host else ""
    return f'database "{parsed.database or parsed.username or ""}"{host}'


def _is_recorded(connection: Connection) -> bool:
    """Whether `VERSION_TABLE` names a revision."""
    from alembic.runtime.migration import MigrationContext  # noqa: PLC0415 -- imports autogenerate, which a plugin must not

    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    return bool(context.get_current_heads())


def _upgraded(connection: Connection) -> tuple[str, ...]:
    """Bring forward what was installed another way; the revisions that do the same."""
    if not is_ours(connection):
        raise FencingUsageError(
            f'this database has a schema "{SCHEMA}" already, and it is none of ours, for it has no '
            "table fence: rename it, or choose another database"
        )
    before = Installed.in_database(connection).version
    upgrade(connection)
    return tuple(f"fencing_{number:04}" for number in range(before + 1, ddl.SCHEMA_VERSION + 1))


def _location() -> Path:
    for location in _LOCATIONS:
        if (location / "env.py").is_file():
            return location
    raise FencingUsageError(
        f"this installation of fencing lacks its migrations; looked in {_LOCATIONS[0]}"
    )


@contextmanager
def _environment(
    connection: Connection | None = None, output: io.StringIO | None = None
) -> Iterator[Config]:
    """Our environment, which env.py finds ready-made in ``config.attributes``."""
    from alembic.config import Config  # noqa: PLC0415 -- imports autogenerate
    from alembic.util.exc import CommandError  # noqa: PLC0415 -- likewise

    attributes: dict[str, Any] = {"connection": connection, "applied": []}
    config = Config(output_buffer=output, attributes=attributes)
    # A percent sign in an option would be taken for an interpolation.
    config.set_main_option("script_location", str(_location()).replace("%", "%%"))
    try:
        with _one_at_a_time:
            yield config
    except CommandError as error:
        raise FencingUsageError(
            f"this version of fencing cannot migrate this database, which a newer one may have "
            f"installed: {error}"
        ) from error


@contextmanager
def _connected(target: str | URL | Engine | Connection) -> Iterator[Connection]:
    import sqlalchemy as sa  # noqa: PLC0415 -- `fencing sql` does without

    if isinstance(target, sa.Connection):
        check_dialect(target.dialect.name)
        if target.in_transaction():
            yield target
        else:
            with target.begin():
                yield target
        return
    if isinstance(target, sa.Engine):
        engine = target
        check_dialect(engine.dialect.name)
    elif isinstance(target, str | sa.URL):
        engine = engine_at(target)
    else:
        raise TypeError(
            "install and uninstall take a URL, an Engine or a Connection, not "
            f"{type(target).__name__}; under asyncio: await connection.run_sync(install)"
        )
    # After the wait for another installation a new snapshot is needed, whatever the default is.
    with (
        engine.execution_options(isolation_level="READ COMMITTED").connect() as connection,
        connection.begin(),
    ):
        yield connection

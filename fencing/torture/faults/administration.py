"""What administrators do to a database while others work in it."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from fencing import administration
from fencing.errors import FencingUsageError, LockNotAcquiredError, TableBusyError
from fencing.migration import alter_fence, fence_table, install, maintain, unfence_table
from fencing.schema import ddl
from fencing.tables.refusals import sqlstate
from fencing.tables.sending import send
from fencing.torture.faults.beside import beside
from fencing.torture.tables import SCHEMA, TEMPLATES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from random import Random

    from sqlalchemy import Connection, Engine

    from fencing.torture.faults.kinds import Steps
    from fencing.torture.stage import Stage

__all__ = ["MIGRATIONS", "apply", "migrate", "prune", "raise_a_fence", "set_timeouts"]

_TIMEOUTS = (
    "statement_timeout",
    "lock_timeout",
    "idle_in_transaction_session_timeout",
    "transaction_timeout",  # from PostgreSQL 17 on
)
_KNOWN = text("SELECT name FROM pg_settings WHERE name = ANY(:names)")
_NOW = text("SELECT clock_timestamp()")
_END_SOME = text(
    "SELECT count(pg_terminate_backend(pid)) FROM "
    "(SELECT pid FROM pg_stat_activity WHERE usename = :role ORDER BY random() LIMIT 3) AS few"
)
_END_SINCE = text(
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE usename = :role AND backend_start >= :since"
)


def set_timeouts(stage: Stage, chance: Random) -> Steps:
    """Give the workers' role a timeout or two, and some of them new sessions that have it."""
    ttl = stage.settings.ttl
    values = {
        name: max(1, round(1000 * ttl * chance.uniform(0.02, 1.0)))
        for name in chance.sample(_TIMEOUTS, chance.randint(1, 2))
    }

    def begin() -> None:
        with stage.owner.connect() as connection:
            for name in connection.execute(_KNOWN, {"names": list(values)}).scalars():
                connection.exec_driver_sql(f"ALTER ROLE {stage.role} SET {name} = {values[name]}")
            connection.commit()
            connection.execute(_END_SOME, {"role": stage.role})

    def end() -> None:
        with stage.owner.connect() as connection:
            connection.exec_driver_sql(f"ALTER ROLE {stage.role} RESET ALL")
            connection.commit()
            # Or pools would keep the timeouts of this fault for ever.
            connection.execute(_END_SINCE, {"role": stage.role, "since": since})

    since = yield from beside(partial(_time_of, stage.owner))
    try:
        yield from beside(begin)
        yield ttl * chance.uniform(1.0, 4.0)
    finally:
        end()


def _time_of(owner: Engine) -> object:
    with owner.connect() as connection:
        return connection.execute(_NOW).scalar_one()


_PRUNE = "fencing.prune(interval,text,integer)"
_LIMIT = "interval '1 hour'"
_DEFINITION = text("SELECT pg_get_functiondef(CAST(:name AS regprocedure))")
_PRUNE_YOUNG = text(
    "SELECT pruned FROM torture.prune(make_interval(secs => CAST(:age AS double precision)))"
)


def prune(stage: Stage, chance: Random) -> Steps:
    """Prune fences as ``fencing prune`` does, but without its lower limit of an hour.

    No run lasts that long: so it is the function of the database itself with another limit.
    """
    age = stage.settings.ttl * chance.uniform(0.1, 2.0)

    def work() -> None:
        with stage.owner.begin() as connection:
            definition = connection.execute(_DEFINITION, {"name": _PRUNE}).scalar_one()
            ours = definition.replace("FUNCTION fencing.prune", "FUNCTION torture.prune")
            if _LIMIT not in ours or ours == definition:
                _cannot("the function that prunes fences has changed its form")
            send(connection, [ours.replace(_LIMIT, "interval '0'")])
        for _ in range(3):
            with stage.owner.begin() as connection:
                connection.execute(_PRUNE_YOUNG, {"age": age})

    yield from beside(work)


def _cannot(why: str) -> NoReturn:
    raise RuntimeError(f"cannot prune young fences: {why}")


_IN_THE_WAY = {"55P03", "40P01"}
"""What a migration is told if others have the lock that it needs, or wait for its own."""


def _again(connection: Connection, table: str, limit: float) -> None:
    unfence_table(connection, table, schema=SCHEMA, lock_timeout=limit)
    fence_table(connection, table, resource=TEMPLATES[table], schema=SCHEMA, lock_timeout=limit)


def _altered(connection: Connection, table: str, limit: float) -> None:
    for operations in (("update",), ddl.OPERATIONS):
        alter_fence(connection, table, operations=operations, schema=SCHEMA, lock_timeout=limit)


def _maintained(connection: Connection, table: str, limit: float) -> None:
    maintain(connection, table, schema=SCHEMA, lock_timeout=limit)


def _upgraded(connection: Connection, _table: str, _limit: float) -> None:
    send(connection, ddl.upgrade())  # as from an older version


def _installed(connection: Connection, _table: str, _limit: float) -> None:
    install(connection)


MIGRATIONS: Mapping[str, Callable[[Connection, str, float], None]] = {
    "unfenced and fenced": _again,
    "altered and back": _altered,
    "maintained": _maintained,
    "upgraded": _upgraded,
    "installed again": _installed,
}
"""Changes of guards that leave them as they were: connection, table, longest wait in seconds."""


def migrate(stage: Stage, chance: Random) -> Steps:
    """Change the guards in one of the ways that migrations do."""
    change = MIGRATIONS[chance.choice(sorted(MIGRATIONS))]
    table = chance.choice(sorted(TEMPLATES))
    limit = stage.settings.ttl * chance.uniform(0.5, 2.0)
    yield from beside(partial(apply, stage.owner, change, table, limit))


def apply(
    owner: Engine, change: Callable[[Connection, str, float], None], table: str, limit: float
) -> bool:
    """Make a migration in a transaction of its own; whether it was not given up.

    Args:
        owner: Of the database's owner.
        change: The migration.
        table: Whose guard.
        limit: Longest wait for a lock, in seconds.
    """
    try:
        with owner.begin() as connection:
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = {round(limit * 1000)}")
            change(connection, table, limit)
    except TableBusyError:
        return False
    except DBAPIError as error:
        if sqlstate(error) not in _IN_THE_WAY:
            raise
        return False
    return True


_MARK = text("SELECT fencing.mark(:resource)")


def raise_a_fence(stage: Stage, chance: Random) -> Steps:
    """Raise a mark by hand, as ``fencing raise`` does: whoever holds the resource is overtaken."""
    settings = stage.settings
    noun, count = chance.choice(
        (("register", settings.registers), ("set", settings.sets), ("account", settings.accounts))
    )
    resource = f"{noun}:{chance.randint(1, count)}"
    step = chance.choice((1, 2, chance.randint(3, 1000)))
    limit = settings.ttl * chance.uniform(0.2, 2.0)

    def work() -> None:
        with stage.owner.connect() as connection:
            mark = connection.execute(_MARK, {"resource": resource}).scalar() or 0
        # Somebody was faster, or stood in the way.
        with suppress(FencingUsageError, LockNotAcquiredError):
            url = stage.postgres.url
            administration.raise_fence(url, resource, int(mark) + step, timeout=limit)

    yield from beside(work)

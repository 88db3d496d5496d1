"""Forgets fences that nobody has used for long, in batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencing.administration.connecting import engine_of
from fencing.request import check_seconds
from fencing.tables.found import Installed
from fencing.tables.refusals import translated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

__all__ = [
    "MAX_AGE",
    "MAX_BATCH",
    "Pruned",
    "forget_leases",
    "forget_receipts",
    "prunable",
    "prune",
]

MAX_AGE = 36_500 * 86_400
"""The largest age, in seconds; about 6700 years are the most that PostgreSQL can go back."""

MAX_BATCH = 5000
"""The largest batch: each fence takes a place in the server's table of locks, which is shared."""

_PRUNE = """
SELECT p.pruned, p.busy, p.next
FROM fencing.prune(make_interval(secs => CAST(:seconds AS double precision)), :after, :batch) AS p
"""
_FORGET = """
SELECT fencing.forget_receipts(make_interval(secs => CAST(:seconds AS double precision)))
"""
_FORGET_LEASES = """
SELECT fencing.forget_leases(make_interval(secs => CAST(:seconds AS double precision)))
"""
_COUNT = """
SELECT count(*) FILTER (
    WHERE f.admitted_at < clock_timestamp()
        - make_interval(secs => CAST(:seconds AS double precision))), count(*)
FROM fencing.fence AS f
"""


@dataclass(frozen=True, slots=True)
class Pruned:
    """How far a pruning has come.

    Attributes:
        pruned: Fences that are gone, and whose floors keep what they kept.
        busy: Fences that were old enough, and skipped since they, or a floor, were in use.
    """

    pruned: int
    busy: int


def prune(url: str, older_than: float, *, batch: int = 1000) -> Iterator[Pruned]:
    """Remove fences whose last admission is long ago; what they kept, their floors keep.

    Runs beside admissions: waits for nobody, and each batch is a transaction of its own, so it can
    be stopped at any time and begun again.

    Args:
        url: The database; its role must be a member of the owner of schema ``fencing``.
        older_than: How long ago, in seconds; at least an hour, and more than any lease lives.
        batch: How many fences a transaction examines.

    Yields:
        The sums so far, after every batch.

    Raises:
        TypeError: The age is no number.
        ValueError: The URL cannot be read, or the age or the batch is out of its range.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The age is below an hour, or the schema is of another version.
        sqlalchemy.exc.DBAPIError: The database cannot be reached, or refused.
    """
    from sqlalchemy import text  # noqa: PLC0415 -- `fencing --help` does without

    _check_age(older_than)
    if not 1 <= batch <= MAX_BATCH:
        raise ValueError(f"a batch is 1 to {MAX_BATCH} fences, not {batch}")
    pruned = busy = 0
    after: str | None = ""
    with engine_of(url) as engine, _checked(engine).connect() as connection:
        while after is not None:
            with translated(), connection.begin():
                row = connection.execute(
                    text(_PRUNE), {"seconds": older_than, "after": after, "batch": batch}
                ).one()
            pruned, busy, after = pruned + row.pruned, busy + row.busy, row.next
            yield Pruned(pruned, busy)


def forget_receipts(url: str, older_than: float) -> int:
    """Delete receipts of transactions; the outcomes of older ones are unknown from then on.

    Args:
        url: The database, as :func:`prune` takes it.
        older_than: How long ago the transactions began, in seconds; at least an hour.

    Returns:
        How many were deleted.

    Raises:
        TypeError: The age is no number.
        ValueError: The URL cannot be read, or the age is out of its range.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The age is below an hour, or the schema is of another version.
        sqlalchemy.exc.DBAPIError: The database cannot be reached, or refused.
    """
    return _forget(_FORGET, url, older_than)


def forget_leases(url: str, older_than: float) -> int:
    """Delete what is left of leases of the lock service in the database that ended long ago.

    Their tokens are kept by their fences, or by the floors of those.

    Args:
        url: The database, as :func:`prune` takes it.
        older_than: How long ago they ended, in seconds; at least an hour.

    Returns:
        How many were deleted.

    Raises:
        TypeError: The age is no number.
        ValueError: The URL cannot be read, or the age is out of its range.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The age is below an hour, or the schema is of another version.
        sqlalchemy.exc.DBAPIError: The database cannot be reached, or refused.
    """
    return _forget(_FORGET_LEASES, url, older_than)


def _forget(statement: str, url: str, older_than: float) -> int:
    from sqlalchemy import text  # noqa: PLC0415 -- `fencing --help` does without

    _check_age(older_than)
    with (
        engine_of(url) as engine,
        translated(),
        _checked(engine).begin() as connection,
    ):
        count: int = connection.execute(text(statement), {"seconds": older_than}).scalar_one()
        return count


def prunable(url: str, older_than: float) -> tuple[int, int]:
    """How many fences are old enough to be pruned, and how many there are; changes nothing.

    Args:
        url: The database, as :func:`prune` takes it.
        older_than: How long ago their last admission is, in seconds.

    Raises:
        TypeError: The age is no number.
        ValueError: The URL cannot be read, or the age is out of its range.
        GuardNotInstalledError: The database has no schema ``fencing``.
        FencingUsageError: The age is below an hour, or the schema is of another version.
        sqlalchemy.exc.DBAPIError: The database cannot be reached, or refused.
    """
    from sqlalchemy import text  # noqa: PLC0415 -- `fencing --help` does without

    _check_age(older_than)
    with engine_of(url) as engine, _checked(engine).connect() as connection, translated():
        # Whether the age is acceptable is the database's to say.
        connection.execute(text(_PRUNE), {"seconds": older_than, "after": "", "batch": 0})
        old, total = connection.execute(text(_COUNT), {"seconds": older_than}).one()
        return old, total


def _check_age(older_than: float) -> None:
    """Raise where it is none; whether it is long enough is the database's to say."""
    check_seconds("older_than", older_than)
    if not 0 < older_than <= MAX_AGE:
        raise ValueError(
            f"older_than must be above 0 seconds and at most {MAX_AGE}, a hundred years, not "
            f"{older_than}"
        )


def _checked(engine: Engine) -> Engine:
    with engine.connect() as connection:
        Installed.in_database(connection).require_current()
    return engine

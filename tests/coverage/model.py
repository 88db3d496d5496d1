"""What the list of write paths is made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.orm import Session

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg
    from sqlalchemy import Connection

    Run = Callable[["Writer", "Ids"], object]

# What a write comes to. Any other expectation is the SQLSTATE that it is refused with.
WRITES = "passes"
NOTHING = "writes nothing"
UNFENCED = "ZF002"
STALE = "ZF001"
SERIALIZATION = "40001"  # what "stale" looks like under a snapshot older than the admission


class Ids(NamedTuple):
    """Numbers of the accounts that one write is about."""

    mine: int
    mate: int  # a second one that the write touches
    new: int  # of which there are no rows yet
    stranger: int  # which it does not touch


@dataclass
class Writer:
    """The connection that writes, as SQLAlchemy and as psycopg know it.

    Attributes:
        claim: The leases that it has presented, as ``fencing.enter`` reads them.
    """

    sqlalchemy: Connection
    connection: psycopg.Connection
    claim: str = ""

    def session(self) -> Session:
        """An ORM session in the writer's transaction."""
        return Session(bind=self.sqlalchemy)


@dataclass(frozen=True)
class Scenario:
    """Tables that are guarded, in a schema of their own.

    Attributes:
        name: Of the schema.
        tables: Statements that make them; ``fence(...)`` in them guards a table.
        accounts: Rows exist for the accounts 1 to this one.
    """

    name: str
    tables: str
    accounts: int = 400


@dataclass(frozen=True)
class Path:
    """One way to write.

    Attributes:
        group: What the page lists it under.
        name: What it is.
        scenario: The tables that it needs.
        run: Does it; the writer's transaction is committed afterwards.
        needs: The resources it touches, with the fields of `Ids` in braces.
        none: What it comes to without a lease, and so on for the other situations.
        noticed: What observe mode reports; `None` stands for "no resource". Default: `needs`.
        since: The oldest PostgreSQL that has it.
        spoils: Leaves tables behind that the next write could not be tried on.
        ends_transaction: Does not stay in the writer's transaction.
        remark: What the page says about it.
    """

    group: str
    name: str
    scenario: Scenario
    run: Run = field(repr=False)
    needs: tuple[str, ...] = ("account:{mine}",)
    none: str = UNFENCED
    overtaken: str = STALE
    other: str = UNFENCED
    right: str = WRITES
    noticed: tuple[str | None, ...] | None = None
    since: int = 15
    spoils: bool = False
    ends_transaction: bool = False
    remark: str = ""

    @property
    def id(self) -> str:
        """Name of its tests."""
        return f"{self.scenario.name}-{self.name}"

    def resources(self, ids: Ids) -> list[str]:
        """The resources that it touches."""
        return [need.format(**ids._asdict()) for need in self.needs]

    def reported(self, ids: Ids) -> set[str | None]:
        """The resources that observe mode reports without a lease."""
        if self.none == UNFENCED and self.noticed is not None:
            return {each and each.format(**ids._asdict()) for each in self.noticed}
        return set(self.resources(ids)) if self.none == UNFENCED else set()


@dataclass(frozen=True)
class Statements:
    """Statements on psycopg itself, with the fields of `Ids` in braces; see `sql`."""

    texts: tuple[str, ...]

    def __call__(self, writer: Writer, ids: Ids) -> None:
        """Send them as they are."""
        for text in self.texts:
            writer.connection.execute(text.format(**ids._asdict()).encode())


def sql(*statements: str) -> Run:
    """A way to write that depends on no driver: these statements."""
    return Statements(statements)


def everywhere(outcome: str) -> dict[str, Any]:
    """The same outcome whatever has been presented."""
    return {"none": outcome, "overtaken": outcome, "other": outcome, "right": outcome}

"""Gathers what the catalogs say: the queries in ``sql/*.sql``, and their rows as facts.

Every row comes as one JSON object, so that no driver's types make a difference.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeVar

from fencing.errors import FencingUsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

__all__ = [
    "Constraint",
    "Facts",
    "Function",
    "Grant",
    "OwnTable",
    "Prepared",
    "Queries",
    "Relation",
    "Role",
    "Setting",
    "Trigger",
    "gather",
    "rows_of",
]

if TYPE_CHECKING:
    # A query goes out; the first column of each row comes back.
    Queries = Generator[str, Iterable[Any], "T"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """A function of schema ``fencing``; see ``sql/functions.sql``."""

    name: str
    arguments: str
    result: str
    language: str
    body: str
    definer: bool
    settings: tuple[str, ...]
    volatility: str
    strict: bool
    oid: int = 0
    owner: str = ""
    callable: bool = False

    @property
    def signature(self) -> str:
        """What people call it."""
        return f"fencing.{self.name}({self.arguments})"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnTable:
    """A table or view of schema ``fencing``; see ``sql/tables.sql``."""

    name: str
    kind: str
    persistence: str
    owner: str
    row_security: bool
    has_rules: bool
    has_children: bool
    columns: tuple[str, ...]
    defaults: tuple[str, ...]
    indexes: tuple[str, ...]
    readable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """A constraint of our tables; see ``sql/constraints.sql``."""

    table_name: str
    name: str
    definition: str
    validated: bool
    enforced: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A right of somebody who does not own the object; see ``sql/grants.sql``."""

    kind: str
    object: int
    name: str
    column_name: str | None
    privilege: str
    grantee: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """A trigger that is ours; see ``sql/triggers.sql``."""

    relation: int
    name: str
    function: int
    calls_ours: bool
    enabled: str
    type: int
    is_clone: bool
    is_narrowed: bool
    new_table: str
    old_table: str
    definition: str
    columns: tuple[str, ...]
    comment: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table; see ``sql/relations.sql``."""

    oid: int
    schema: str
    table_name: str
    name: str
    kind: str
    owner: str

    @property
    def as_arguments(self) -> str:
        """How an operation of Alembic's names it."""
        where = "" if self.schema == "public" else f", schema={self.schema!r}"
        return f"{self.table_name!r}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A role; see ``sql/roles.sql``."""

    name: str
    is_superuser: bool
    can_login: bool
    can_create_roles: bool
    belongs_to: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of the connection that looks, or a role's default; see ``sql/settings.sql``."""

    name: str
    value: str
    role: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A prepared transaction; see ``sql/prepared.sql``."""

    gid: str
    owner: str
    prepared: str
    holds: bool


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What one database says of itself.

    Attributes:
        database: Its name.
        who: The role that looks.
        path: The schemas that its search_path finds tables in, in order.
        server: The server's version, such as 150018.
        standby: Whether it is a standby.
        owner: The owner of schema ``fencing``; ``None`` where there is no schema.
        inherits: Pairs of a part and its parent.
        may_set_replication_role: Roles that are no superusers.
        subscriptions: Pairs of a subscription's name and a table.
    """

    database: str
    who: str
    path: tuple[str, ...]
    server: int
    standby: bool
    owner: str | None
    functions: tuple[Function, ...] = ()
    tables: tuple[OwnTable, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    grants: tuple[Grant, ...] = ()
    triggers: tuple[Trigger, ...] = ()
    relations: tuple[Relation, ...] = ()
    inherits: tuple[tuple[int, int], ...] = ()
    roles: tuple[Role, ...] = ()
    may_set_replication_role: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    prepared: tuple[Prepared, ...] = ()
    subscriptions: tuple[tuple[str, int], ...] = ()
    # Filled after the functions have been found to be ours.
    floors: int | None = field(default=None)

    @cached_property
    def by_oid(self) -> dict[int, Relation]:
        """Every table."""
        return {relation.oid: relation for relation in self.relations}

    @cached_property
    def role(self) -> dict[str, Role]:
        """Every role."""
        return {role.name: role for role in self.roles}

    def belongs_to(self, name: str) -> set[str]:
        """The role itself, and every role whose rights it has or can take."""
        found: set[str] = set()
        pending = [name]
        while pending:
            each = pending.pop()
            if each not in found:
                found.add(each)
                pending += self.role[each].belongs_to if each in self.role else ()
        return found

    def is_superuser(self, name: str) -> bool:
        """Whether a role is one, or can become one."""
        return any(
            each in self.role and self.role[each].is_superuser for each in self.belongs_to(name)
        )

    def descendants(self, oid: int) -> list[int]:
        """The table's parts, and theirs; without itself."""
        found: dict[int, None] = {}
        pending = [oid]
        while pending:
            new = [part for part in self._parts.get(pending.pop(), ()) if part not in found]
            found |= dict.fromkeys(new)
            pending += new
        return list(found)

    def find(self, schema: str, table_name: str) -> Relation | None:
        """A table by its names, unquoted."""
        return self._by_name.get((schema, table_name))

    @cached_property
    def _parts(self) -> dict[int, list[int]]:
        parts: dict[int, list[int]] = {}
        for child, parent in self.inherits:
            parts.setdefault(parent, []).append(child)
        return parts

    @cached_property
    def _by_name(self) -> dict[tuple[str, str], Relation]:
        return {(each.schema, each.table_name): each for each in self.relations}

    @property
    def version(self) -> int:
        """The version of the schema: 0 where there is none, or no sign of one."""
        return self._versions[0]

    @property
    def oldest_client(self) -> int:
        """The oldest version of the package that the schema serves."""
        return self._versions[1]

    @property
    def _versions(self) -> tuple[int, int]:
        # Read rather than called: it may be anybody's.
        for function in self.functions:
            if function.name == "versions" and (
                match := re.fullmatch(r"\s*SELECT (\d+), (\d+)\s*", function.body)
            ):
                return int(match[1]), int(match[2])
        return (1, 1) if any(table.name == "fence" for table in self.tables) else (0, 0)


def gather() -> Queries[Facts]:
    """The facts of a database, within one transaction.

    Raises:
        FencingUsageError: Each query was a transaction of its own.
    """
    (session,) = rows_of((yield _query("session")))
    # No operator or function of anybody else's is to be found from here on.
    yield "SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true)"
    (path,) = yield "SELECT pg_catalog.current_setting('search_path')"
    if path != "pg_catalog, pg_temp":
        raise FencingUsageError(
            "a verification takes a connection in a transaction, and this one is in AUTOCOMMIT"
        )
    schema = rows_of((yield _query("schema")))
    several: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        several[name] = tuple(_read(kind, row) for row in rows_of((yield _query(name))))
    inherits = rows_of((yield _query("inherits")))
    parameters = rows_of((yield _query("parameters")))
    subscriptions = rows_of((yield _query("subscriptions")))
    return Facts(
        database=session["database"],
        who=session["who"],
        path=tuple(session["path"]),
        server=int(session["server"]),
        standby=session["standby"],
        owner=schema[0]["owner"] if schema else None,
        inherits=tuple((row["child"], row["parent"]) for row in inherits),
        may_set_replication_role=tuple(row["grantee"] for row in parameters),
        subscriptions=tuple((row["name"], row["relation"]) for row in subscriptions),
        **several,
    )


_KINDS: dict[str, type] = {
    "functions": Function,
    "tables": OwnTable,
    "constraints": Constraint,
    "grants": Grant,
    "triggers": Trigger,
    "relations": Relation,
    "roles": Role,
    "settings": Setting,
    "prepared": Prepared,
}


def rows_of(column: Iterable[Any]) -> list[dict[str, Any]]:
    """The rows that the first column holds as JSON."""
    return [json.loads(text) for text in column]


def _read(kind: type, row: dict[str, Any]) -> Any:  # noqa: ANN401 -- one of _KINDS
    return kind(
        **{
            each.name: tuple(value) if isinstance(value, list) else value
            for each in fields(kind)
            for value in [row[each.name]]
        }
    )


def _query(name: str) -> str:
    file = resources.files("fencing.verification").joinpath("sql", f"{name}.sql")
    rows = file.read_text("utf-8")
    return f"SELECT CAST(pg_catalog.to_jsonb(q) AS pg_catalog.text) FROM (\n{rows}) AS q"  # noqa: S608 -- a file of ours

"""One database of healthy guards for all tests: what is planted in it is rolled back.

The roles are made by the statements of docs/how-to/roles.md.
"""

from __future__ import annotations

import re
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy import make_url

from fencing.schema import ddl
from fencing.verification import perform, verification
from tests.schema.sql import run
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fencing.verification import Declared, Verification
    from tests.support.databases import DatabaseFactory

PAGE = Path(__file__).parents[2] / "docs/how-to/roles.md"

TABLES = """
CREATE TABLE accounts (id bigint PRIMARY KEY, balance int NOT NULL);
INSERT INTO accounts VALUES (42, 100), (43, 100);
CREATE TABLE orders (id bigint, region text) PARTITION BY LIST (region);
CREATE TABLE orders_1 PARTITION OF orders FOR VALUES IN ('1');
CREATE TABLE trips (id bigint, region text) PARTITION BY LIST (region);
CREATE TABLE trips_1 PARTITION OF trips FOR VALUES IN ('1');
CREATE TABLE things (id bigint, name text);
CREATE TABLE things_1 () INHERITS (things);
CREATE TABLE notes (id bigint PRIMARY KEY)
"""

Found = tuple[str, str, str | None, str | None]


@dataclass(frozen=True)
class Site:
    """A database with guards, and its roles.

    Attributes:
        url: Its address as a superuser, for psycopg.
        suffix: What the names of its roles end with.
    """

    url: str
    suffix: str

    @property
    def owner(self) -> str:
        return f"bank_owner_{self.suffix}"

    @property
    def migrator(self) -> str:
        return f"bank_migrator_{self.suffix}"

    @property
    def app(self) -> str:
        return f"bank_app_{self.suffix}"

    @property
    def monitor(self) -> str:
        return f"bank_monitor_{self.suffix}"

    def url_of(self, role: str) -> str:
        """The address for a role, for psycopg."""
        return make_url(self.url).set(username=role).render_as_string(hide_password=False)

    def documented(self, number: int) -> str:
        """A block of SQL of the page, with this site's names."""
        block = re.findall(r"```sql\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[number]
        renamed = re.sub(r"\bbank_(\w+)", lambda m: f"{m[0]}_{self.suffix}", block)
        database = make_url(self.url).database
        return re.sub(r"ON DATABASE bank\b", f"ON DATABASE {database}", renamed)


ROLES, SET_ROLE, GRANTS, HARDENING, EVICTION = range(5)


@contextmanager
def made(factory: DatabaseFactory) -> Iterator[Site]:
    """A site; its database and roles are dropped afterwards."""
    with factory.empty() as url:
        site = Site(plain_url(url), uuid.uuid4().hex[:12])
        with psycopg.connect(site.url, autocommit=True) as admin:
            admin.execute(site.documented(ROLES))
            try:
                admin.execute(site.documented(SET_ROLE))
                run(admin, ddl.install())
                admin.execute(TABLES)
                for table in ("accounts", "orders", "things"):
                    run(admin, ddl.fence_table(table, f"{table}:{{id}}"))
                run(admin, ddl.fence_table("trips", "trip:{id}", operations=("update", "delete")))
                admin.execute(site.documented(GRANTS))
                admin.execute("GRANT SELECT ON notes TO PUBLIC; RESET ROLE")
                yield site
            finally:
                admin.execute("RESET ROLE")
                roles = (site.app, site.monitor, site.migrator, site.owner)
                admin.execute(f"DROP OWNED BY {', '.join(roles)} CASCADE".encode())
                admin.execute(f"DROP ROLE {', '.join(roles)}".encode())


@pytest.fixture(scope="session")
def site(database_factory: DatabaseFactory) -> Iterator[Site]:
    """The database that nobody changes for good."""
    with made(database_factory) as site:
        yield site


@pytest.fixture
def own_site(database_factory: DatabaseFactory) -> Iterator[Site]:
    """A database of this test's own."""
    with made(database_factory) as site:
        yield site


@pytest.fixture
def admin(site: Site) -> Iterator[psycopg.Connection]:
    """A superuser, in a transaction that is rolled back."""
    with psycopg.connect(site.url) as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def planted(admin: psycopg.Connection) -> Callable[..., set[Found]]:
    """What a verification finds after some statements that it did not find before them.

    Everything in one transaction, which the end of the test undoes.
    """

    def plant(*statements: str, declared: Sequence[Declared] | None = None) -> set[Found]:
        before = found(look(admin, declared))
        for statement in statements:
            admin.execute(statement.encode())
        return found(look(admin, declared)) - before

    return plant


def look(
    connection: psycopg.Connection, declared: Sequence[Declared] | None = None
) -> Verification:
    """Verify, and leave the search_path as it was."""
    with connection.transaction(force_rollback=True):
        return perform(
            verification(declared),
            lambda query: [row[0] for row in connection.execute(query.encode())],
        )


def found(verification: Verification) -> set[Found]:
    """What tells one finding from another."""
    return {(f.severity, f.code, f.table, f.subject) for f in verification.findings}

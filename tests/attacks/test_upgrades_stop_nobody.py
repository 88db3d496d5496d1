"""A schema is brought forward by whoever may, and whatever goes on meanwhile."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fencing.schema import ddl
from fencing.schema.names import STALE, UNFENCED
from tests.schema.sql import ALICE, BOB, admit, enter, refused, run, wait_until_blocked

if TYPE_CHECKING:
    import psycopg

VERSION_1 = Path(__file__).parents[1].joinpath("schema/data/version_1.sql").read_text("utf-8")
# Roles are of the whole server, and several processes may be testing on it.
OWNER, MIGRATOR, APPLICATION = (
    f"{name}_{uuid.uuid4().hex}" for name in ("owner", "migrator", "application")
)


@pytest.fixture
def old(admin):
    """A database as version 1 left it, empty."""
    run(admin, ddl.uninstall())
    with admin.transaction():
        admin.execute(VERSION_1.encode())
    return admin


@pytest.fixture
def of_a_role(admin):
    """The same, where everything is owned by a role that nobody logs in as."""
    run(admin, ddl.uninstall())
    (database,) = admin.execute("SELECT quote_ident(current_database())").fetchone()
    admin.execute(f"CREATE ROLE {OWNER}; CREATE ROLE {MIGRATOR} IN ROLE {OWNER}")
    admin.execute(f"CREATE ROLE {APPLICATION}")
    admin.execute(f"GRANT CREATE ON DATABASE {database} TO {OWNER}")
    admin.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {OWNER}")
    with admin.transaction():
        admin.execute(f"SET LOCAL ROLE {OWNER}")
        admin.execute(VERSION_1.encode())
        admin.execute(f"GRANT ALL ON accounts TO {APPLICATION}")
    yield admin
    admin.execute("RESET ROLE; SET lock_timeout = '10s'")
    for role in (APPLICATION, MIGRATOR, OWNER):
        admin.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


@pytest.mark.parametrize(
    "upgrader", ["NONE", MIGRATOR, OWNER], ids=["superuser", "migrator", "owner"]
)
def test_whoever_brings_a_schema_forward_its_owner_owns_it_and_applications_go_on(
    of_a_role, connect, upgrader
):
    of_a_role.execute(f"SET ROLE {upgrader}")
    run(of_a_role, ddl.upgrade())
    application = connect(autocommit=True)
    application.execute(f"SET ROLE {APPLICATION}")
    assert admit(application, 1)
    with application.transaction():
        enter(application)
        application.execute("INSERT INTO accounts VALUES (42, 100)")
    with refused(UNFENCED):
        application.execute("INSERT INTO accounts VALUES (43, 100)")
    owner = connect(autocommit=True)
    owner.execute(f"SET ROLE {OWNER}")
    run(owner, [*ddl.maintain("accounts"), "UPDATE accounts SET balance = 0"])


@pytest.mark.parametrize(
    "what", ["SELECT fencing.raise_fence('account:1', 5)", "SELECT fencing.prune('1 hour')"]
)
def test_running_it_again_lets_admissions_by_while_fences_are_locked(accounts, connect, what):
    busy, upgrading = connect(), connect(autocommit=True)
    busy.execute("SELECT fencing.raise_fence('account:1', 4)")
    busy.execute(what.encode())
    run(upgrading, ddl.upgrade())
    assert admit(accounts, 1)


def test_running_it_again_beside_a_maintenance_lets_admissions_by(accounts, connect):
    maintaining, upgrading = connect(), connect(autocommit=True)
    for statement in (*ddl.maintain("accounts"), "UPDATE accounts SET balance = 0"):
        maintaining.execute(statement.encode())
    with ThreadPoolExecutor() as threads:
        upgrade = threads.submit(run, upgrading, ddl.upgrade())
        wait_until_blocked(accounts, upgrading.info.backend_pid)
        assert admit(accounts, 1, resource="account:7", wait_ms=1)
        maintaining.commit()
        upgrade.result()


def test_an_entry_that_has_waited_all_the_while_is_refused_as_it_would_have_been(old, connect):
    admit(old, 1)
    first, second = connect(), connect()
    successor = connect(autocommit=True)
    enter_as_version_1(first)
    with ThreadPoolExecutor() as threads:
        admission = threads.submit(admit, successor, 2, BOB, wait_ms=10_000)
        wait_until_blocked(old, successor.info.backend_pid)
        entry = threads.submit(enter_as_version_1, second)
        wait_until_blocked(old, second.info.backend_pid)
        run(old, ddl.upgrade())
        first.rollback()
        assert admission.result()
        with refused(STALE):
            entry.result()


def enter_as_version_1(connection: psycopg.Connection) -> None:
    item = f"{b'account:42'.hex()}=1.{ALICE}"
    connection.execute("SELECT fencing.enter(%s, NULL)", (item,))

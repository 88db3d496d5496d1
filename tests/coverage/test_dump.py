"""A dump that is restored guards as before: tables, marks and floors."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.embedded.postgres import installed_programs
from fencing.schema import ddl
from fencing.schema.names import STALE, UNFENCED
from tests.schema.sql import ACCOUNT, ALICE, admit, enter, mark, refused, run
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GUARDED = """
    CREATE TABLE accounts (id bigint PRIMARY KEY, balance int);
    CREATE TABLE entries (account_id bigint, part int) PARTITION BY LIST (part);
    CREATE TABLE first PARTITION OF entries FOR VALUES IN (0);
    CREATE TABLE middle PARTITION OF entries FOR VALUES IN (1, 2) PARTITION BY LIST (part);
    CREATE TABLE leaf PARTITION OF middle FOR VALUES IN (1);
    CREATE TABLE logs (account_id bigint);
    CREATE TABLE child () INHERITS (logs);
    CREATE TABLE watched (id bigint);
    INSERT INTO accounts VALUES (42, 100);
    INSERT INTO entries VALUES (42, 0), (42, 1);
    INSERT INTO child VALUES (42);
"""
WRITES = (
    "INSERT INTO accounts VALUES (43, 0)", "UPDATE accounts SET balance = 0",
    "DELETE FROM accounts", "TRUNCATE accounts",
    "INSERT INTO entries VALUES (42, 2)", "UPDATE entries SET part = 1 - part",
    "UPDATE first SET account_id = 1", "DELETE FROM leaf", "INSERT INTO leaf VALUES (42, 1)",
    "UPDATE middle SET account_id = 1", "TRUNCATE entries", "TRUNCATE leaf",
    "UPDATE logs SET account_id = 1", "DELETE FROM child", "TRUNCATE child",
)  # fmt: skip
TRIGGERS = """
SELECT CAST(CAST(tgrelid AS regclass) AS text), tgname, CAST(tgenabled AS text),
    pg_get_triggerdef(oid), obj_description(oid, 'pg_trigger')
FROM pg_trigger WHERE NOT tgisinternal OR tgname ~ 'fencing' ORDER BY 1, 2
"""


@pytest.fixture
def programs(database_url: str) -> Path:
    """The folder of pg_dump, of the server's own version."""
    with psycopg.connect(plain_url(database_url)) as connection:
        major = connection.info.server_version // 10_000
    for folder in (installed_programs(), Path(f"/usr/lib/postgresql/{major}/bin")):
        program = folder / "pg_dump"
        if program.exists():
            said = subprocess.check_output([program, "--version"], text=True)
            if re.search(rf" {major}\b", said):
                return folder
    pytest.skip(f"there is no pg_dump of version {major}")


@pytest.fixture
def original(fenced_database: str) -> Iterator[psycopg.Connection]:
    """A guarded database, in use for a while."""
    with psycopg.connect(plain_url(fenced_database), autocommit=True) as owner:
        owner.execute(GUARDED.encode())
        for table, template in (
            ("accounts", "account:{id}"), ("entries", "account:{account_id}"),
            ("logs", "account:{account_id}"),
        ):  # fmt: skip
            run(owner, ddl.fence_table(table, template))
        run(
            owner, ddl.fence_table("watched", "watched:{id}", operations=["update"], mode="observe")
        )
        owner.execute("CREATE TABLE late PARTITION OF middle FOR VALUES IN (2)")
        admit(owner, 7, resource="forgotten")
        owner.execute("UPDATE fencing.fence SET admitted_at = admitted_at - interval '1 day'")
        owner.execute("SELECT fencing.prune('1 hour')")
        admit(owner, 3)
        yield owner


@pytest.fixture
def restored_url(database: str) -> str:
    """Where dumps are restored to."""
    return plain_url(database)


@pytest.fixture
def restore(
    original, fenced_database: str, restored_url: str, programs: Path, tmp_path: Path
) -> Iterator[Callable]:
    """Dumps the original and restores it into an empty database; returns a connection to that."""
    connections = []

    def restore(*options: str) -> psycopg.Connection:
        dump = tmp_path / "dump"
        source = plain_url(fenced_database)
        subprocess.run([programs / "pg_dump", "-Fc", "-f", dump, source], check=True)
        command = [programs / "pg_restore", "--exit-on-error", *options, "-d", restored_url, dump]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        connections.append(psycopg.connect(restored_url))
        return connections[-1]

    yield restore
    for connection in connections:
        connection.close()


@pytest.fixture
def restored(restore: Callable) -> psycopg.Connection:
    """A connection to what a whole dump was restored to."""
    return restore()


def test_every_write_is_refused_as_before(restored):
    for write in WRITES:
        with refused(UNFENCED), restored.transaction():
            restored.execute(write.encode())
    restored.execute("SET session_replication_role = replica")
    restored.commit()
    for write in WRITES:
        with refused(UNFENCED), restored.transaction():
            restored.execute(write.encode())


def test_marks_and_floors_are_there(restored):
    assert mark(restored) == (3, ALICE)
    assert restored.execute("SELECT fencing.mark('forgotten')").fetchone() == (7,)
    restored.commit()
    for resource, token in ((ACCOUNT, 2), ("forgotten", 7)):
        with refused(STALE), restored.transaction():
            admit(restored, token, resource=resource)


def test_a_holder_goes_on(restored):
    enter(restored, (ACCOUNT, 3, ALICE))
    restored.execute("UPDATE accounts SET balance = 0 WHERE id = 42")
    restored.execute("UPDATE entries SET part = 1 - part WHERE account_id = 42")
    restored.commit()


def test_nothing_of_a_guard_has_changed(original, restored):
    assert (
        restored.execute(TRIGGERS.encode()).fetchall()
        == original.execute(TRIGGERS.encode()).fetchall()
    )
    query = (
        "SELECT table_name, resource, operations, mode, version, "
        "CAST(CAST(covered_by AS regclass) AS text) FROM fencing.guards ORDER BY 1"
    )
    guards = original.execute(query).fetchall()
    assert restored.execute(query).fetchall() == guards
    assert {row[0] for row in guards} >= {"accounts", "entries", "late", "child", "watched"}


def test_what_was_dumped_can_be_changed_and_unfenced(restored):
    run(restored, ddl.alter_fence("entries", mode="observe"))
    for table in ("accounts", "entries", "logs", "watched"):
        run(restored, ddl.unfence_table(table))
    run(restored, ddl.uninstall())


def test_data_alone_is_not_restored_into_guarded_tables(restore, restored_url, programs, tmp_path):
    restored = restore("--schema-only")
    done = subprocess.run(
        [programs / "pg_restore", "--data-only", "-n", "public", "-d", restored_url,
         tmp_path / "dump"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "unfenced write" in done.stderr
    assert restored.execute("SELECT count(*) FROM accounts").fetchone() == (0,)


def test_disable_triggers_lets_the_data_in_and_leaves_the_guard_downgraded(
    restore, restored_url, programs, tmp_path
):
    """Until its triggers are ENABLE ALWAYS again, a replica goes round it; verification tells."""
    restored = restore("--schema-only")
    restored.commit()
    subprocess.run(
        [programs / "pg_restore", "--data-only", "--disable-triggers", "-n", "public",
         "-d", restored_url, tmp_path / "dump"],
        check=True,
    )  # fmt: skip
    assert restored.execute("SELECT count(*) FROM accounts").fetchone() == (1,)
    states = restored.execute(
        "SELECT DISTINCT CAST(tgenabled AS text) FROM pg_trigger "
        "WHERE tgrelid = CAST('accounts' AS regclass) AND tgname <> 'fencing_pin'"
    ).fetchall()
    assert states == [("O",)]
    restored.commit()
    with refused(UNFENCED), restored.transaction():
        restored.execute("UPDATE accounts SET balance = 0")
    with restored.transaction():
        restored.execute("SET LOCAL session_replication_role = replica")
        restored.execute("UPDATE accounts SET balance = 0")

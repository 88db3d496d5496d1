"""What PostgreSQL forbids while a table is guarded, because it would undo the guard unseen."""

from __future__ import annotations

import psycopg
import pytest

from fencing.schema import ddl
from tests.schema.sql import ALICE, admit, enter, refused, run

FEATURE_NOT_SUPPORTED = "0A000"
DEPENDENT_OBJECTS = "2BP01"


@pytest.mark.parametrize("template", ["account:{id}", "ledger"])
def test_it_cannot_become_a_child_whose_parent_would_pass_the_guard_by(accounts, template):
    run(accounts, ddl.unfence_table("accounts"))
    run(accounts, ddl.fence_table("accounts", template))
    accounts.execute("CREATE TABLE base (id bigint NOT NULL, balance int NOT NULL)")
    accounts.execute(
        "CREATE TABLE parted (id bigint NOT NULL, balance int NOT NULL) PARTITION BY LIST (id)"
    )
    with pytest.raises(psycopg.Error, match="inheritance child"):
        accounts.execute("ALTER TABLE accounts INHERIT base")
    with pytest.raises(psycopg.Error, match="partition"):
        accounts.execute("ALTER TABLE parted ATTACH PARTITION accounts DEFAULT")


@pytest.mark.parametrize("change", ["TYPE timestamptz USING now()", "TYPE text"])
def test_a_column_of_its_template_keeps_its_type(accounts, change):
    with refused(FEATURE_NOT_SUPPORTED, match="used in a trigger definition"):
        accounts.execute(f"ALTER TABLE accounts ALTER COLUMN id {change}".encode())


def test_a_column_of_its_template_is_not_dropped(accounts):
    with refused(DEPENDENT_OBJECTS):
        accounts.execute("ALTER TABLE accounts DROP COLUMN id")


def test_other_columns_change_as_before(accounts):
    accounts.execute("ALTER TABLE accounts ALTER COLUMN balance TYPE bigint")
    accounts.execute("ALTER TABLE accounts DROP COLUMN balance")


def test_it_never_fires(accounts, connect):
    admit(accounts, 1, ALICE)
    session = connect()
    enter(session)
    session.execute("DELETE FROM accounts WHERE id = 42")
    session.execute("INSERT INTO accounts VALUES (42, 5)")
    session.commit()


def test_unfencing_lets_everything_change_again(accounts):
    run(accounts, ddl.unfence_table("accounts"))
    accounts.execute("ALTER TABLE accounts ALTER COLUMN id TYPE text")

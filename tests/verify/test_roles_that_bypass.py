"""Roles, settings and the like that weaken a guard: each is planted, found, and nothing else is."""

from __future__ import annotations

import psycopg
import pytest

from fencing.embedded import PostgresProcess
from fencing.schema import ddl
from tests.schema.sql import ALICE, admit, enter, run
from tests.support.databases import plain_url
from tests.verify.conftest import found, look

ACCOUNTS = "public.accounts"


def bypassing(admin):
    return {f.message: f.subject for f in look(admin).findings if f.code == "role-can-bypass"}


def test_superusers_and_owners_are_named(admin, site):
    admin.execute(f"ALTER ROLE {site.monitor} SUPERUSER; GRANT {site.owner} TO {site.app}".encode())
    told = bypassing(admin)
    (superusers,) = (set(names.split(", ")) for text, names in told.items() if "superus" in text)
    (owners,) = (set(names.split(", ")) for text, names in told.items() if "the owner of" in text)
    assert {"postgres", site.monitor} <= superusers
    assert owners == {site.owner, site.migrator, site.app}


def test_who_can_write_the_server_s_files_is_as_good_as_a_superuser(admin, site):
    admin.execute(f"GRANT pg_execute_server_program TO {site.app}".encode())
    assert any(site.app in names for names in bypassing(admin).values())


def test_who_may_create_roles_can_join_the_owner_before_version_16(admin, site):
    admin.execute(f"ALTER ROLE {site.app} CREATEROLE".encode())
    named = any("CREATEROLE" in text and site.app in text for text in bypassing(admin))
    assert named == (admin.info.server_version < 160000)


def test_who_may_write_all_data_may_write_the_fence(planted, site):
    here = planted(f"GRANT pg_write_all_data TO {site.app}")
    assert here == {("error", "role-writes-all", None, site.app)}


def test_who_may_read_all_data_may_read_the_holders(planted, site):
    here = planted(f"GRANT pg_read_all_data TO {site.monitor}")
    assert here == {("info", "role-reads-all", None, site.monitor)}


def test_a_table_that_belongs_to_the_application(planted, site):
    here = planted(f"ALTER TABLE accounts OWNER TO {site.app}")
    assert here == {("warning", "role-owns-table", ACCOUNTS, site.app)}


def test_a_table_whose_owner_the_application_is_a_member_of(planted, site):
    here = planted(
        f"CREATE ROLE tables_{site.suffix}",
        f"ALTER TABLE accounts OWNER TO tables_{site.suffix}",
        f"GRANT tables_{site.suffix} TO {site.app}",
    )
    assert here == {("warning", "role-owns-table", ACCOUNTS, f"tables_{site.suffix}")}


def test_a_table_of_a_role_that_nobody_can_be(planted, site):
    assert (
        planted(
            f"CREATE ROLE tables_{site.suffix}",
            f"ALTER TABLE accounts OWNER TO tables_{site.suffix}",
        )
        == set()
    )


def test_who_may_switch_off_triggers_that_are_not_always(planted, site):
    here = planted(f"GRANT SET ON PARAMETER session_replication_role TO {site.app}")
    assert here == {("warning", "role-sets-replication", None, site.app)}


@pytest.mark.parametrize("who", ["owner", "migrator", "app", "postgres"])
def test_who_looks_should_not_be_able_to_switch_it_off(admin, site, who):
    admin.execute(f"ALTER TABLE accounts OWNER TO {site.app}".encode())
    name = getattr(site, who, who)
    admin.execute(f"SET ROLE {name}".encode())
    assert ("warning", "role-connected", None, name) in found(look(admin))


def settings(found):
    return {(severity, subject) for severity, code, _, subject in found if code == "setting"}


@pytest.mark.parametrize(
    ("setting", "severity"),
    [
        ("session_replication_role = replica", "warning"),
        ("synchronous_commit = off", "info"),
        ("synchronous_commit = local", "info"),
        ("default_transaction_isolation = 'repeatable read'", "info"),
    ],
)
@pytest.mark.parametrize("where", ["SET LOCAL", "ALTER ROLE"])
def test_a_setting(planted, site, setting, severity, where):
    command = where if where == "SET LOCAL" else f"ALTER ROLE {site.app} SET"
    here = planted(f"{command} {setting}")
    assert here == {(severity, "setting", None, setting.split(" ")[0])}


def test_a_subscription_that_writes_a_guarded_table(planted, site):
    here = planted(
        f"CREATE SUBSCRIPTION s{site.suffix} CONNECTION 'dbname=nowhere' PUBLICATION p "
        "WITH (connect = false, slot_name = NONE, enabled = false, create_slot = false)",
        "SET LOCAL allow_system_table_mods = on",
        "INSERT INTO pg_subscription_rel (srsubid, srrelid, srsubstate) SELECT s.oid, "
        "CAST('orders_1' AS regclass), 'r' FROM pg_subscription AS s "
        f"WHERE s.subname = 's{site.suffix}'",
    )
    assert here == {("warning", "subscription", "public.orders_1", f"s{site.suffix}")}


@pytest.mark.slow
def test_prepared_transactions_and_standbys():
    with PostgresProcess({"max_prepared_transactions": "5"}, in_memory=True) as server:
        url = plain_url(server.url)
        with psycopg.connect(url) as connection:
            run(connection, ddl.install())
            connection.execute("CREATE TABLE other (id int)")
            connection.commit()
            before = found(look(connection))
            assert ("warning", "max_prepared_transactions") in settings(before)
            connection.rollback()
            admit(connection, 1)
            connection.commit()
            # On connections that are gone: these transactions need none.
            prepare(url, "INSERT INTO other VALUES (1)", "harmless")
            prepare(url, None, "under a lease")
            after = found(look(connection))
        assert after - before == {
            ("warning", "prepared-transaction", None, "harmless"),
            ("error", "prepared-transaction", None, "under a lease"),
        }
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        with psycopg.connect(url) as connection:
            assert ("info", "standby", None, None) in found(look(connection))


def prepare(url, statement, name):
    with psycopg.connect(url) as connection:
        if statement is None:
            enter(connection, ("account:42", 1, ALICE))
        else:
            connection.execute(statement)
        connection.execute(f"PREPARE TRANSACTION '{name}'")

"""``fencing.postgres.verify``: the same over a bare connection, sync and async."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row

from fencing import fenced_by, postgres
from fencing.clock import now
from tests.support.databases import plain_url
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks

METADATA = sa.MetaData()
fenced_by("note:{id}")(
    sa.Table("notes", METADATA, sa.Column("id", sa.BigInteger, primary_key=True))
)

EXPECTED = {("guard-missing", "public.notes")}


def errors(verification):
    return {(f.code, f.table) for f in verification.findings if f.severity == "error"}


@pytest.mark.parametrize("options", [{}, {"autocommit": True}, {"row_factory": dict_row}])
def test_a_connection(site, options):
    with psycopg.connect(site.url_of(site.app), **options) as connection:
        assert errors(postgres.verify(connection)) == set()
        assert errors(postgres.verify(connection, METADATA)) == EXPECTED


@pytest.mark.parametrize("options", [{}, {"autocommit": True}, {"row_factory": dict_row}])
async def test_an_asynchronous_connection(site, options):
    async with await psycopg.AsyncConnection.connect(
        site.url_of(site.app), **options
    ) as connection:
        assert errors(await postgres.verify(connection)) == set()
        assert errors(await postgres.verify(connection, METADATA)) == EXPECTED


def test_a_transaction_in_progress_goes_on_as_it_was(site):
    with psycopg.connect(site.url) as connection:
        connection.execute("SET search_path = public, pg_catalog; CREATE TABLE mine (id int)")
        postgres.verify(connection)
        assert connection.execute("SHOW search_path").fetchone() == ("public, pg_catalog",)
        assert connection.execute("SELECT * FROM mine").fetchall() == []
        connection.rollback()


def test_what_is_no_connection(site):
    with pytest.raises(TypeError, match="a connection of psycopg, not str"):
        postgres.verify(site.url)


def test_a_guard_verifies_its_databases(site, database_factory):
    with database_factory.fenced() as empty:
        urls = site.url_of(site.app), plain_url(empty)
        with postgres.PsycopgGuard(ScriptedLocks(), *urls) as guard:
            found = guard.verify()
            assert [errors(each) for each in found] == [set(), set()]
            assert [table.name for table in found[0].tables if table.guarded] != []
            # The table is in one of them; that the other lacks it is no finding.
            assert [errors(each) for each in guard.verify(METADATA)] == [EXPECTED, set()]
            with pytest.raises(TypeError):
                guard.verify(7)


async def test_an_asynchronous_guard_verifies_its_databases(site):
    guard = postgres.AsyncPsycopgGuard(AsyncScriptedLocks(), site.url_of(site.app))
    async with guard:
        assert [errors(each) for each in await guard.verify()] == [set()]
        assert [errors(each) for each in await guard.verify(METADATA)] == [EXPECTED]


def test_a_guard_verifies_beside_admissions_that_have_every_connection(site):
    with postgres.PsycopgGuard(ScriptedLocks(), site.url_of(site.app), max_connections=1) as guard:
        (database,) = guard.databases
        with database.connections.slots.slot(now() + 1):
            assert [errors(each) for each in guard.verify()] == [set()]


def test_a_database_that_is_not_there_is_told_by_the_driver(site):
    with (
        postgres.PsycopgGuard(ScriptedLocks(), "host=127.0.0.1 port=1 dbname=x") as guard,
        pytest.raises(psycopg.OperationalError, match="refused"),
    ):
        guard.verify()

"""``fencing.postgres.verify``: the same over a bare connection, sync and async."""

from __future__ import annotations

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row

from fencing import fenced_by, postgres

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

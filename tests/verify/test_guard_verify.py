"""``Guard.verify()`` and ``AsyncGuard.verify()``."""

from __future__ import annotations

import inspect

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from fencing import AsyncGuard, Guard, fenced_by
from fencing.embedded.asking import until
from fencing.verification import Verification
from tests.support.scripted import AsyncScriptedLocks, ScriptedLocks


def sqlalchemy_url(url, driver="psycopg"):
    return sa.make_url(url).set(drivername=f"postgresql+{driver}")


@pytest.fixture
def make_guard(site):
    """A guard as the application, over some engines."""
    engines = []

    def make(*urls, **options):
        made = [
            sa.create_engine(sqlalchemy_url(url), **options)
            for url in urls or [site.url_of(site.app)]
        ]
        engines.extend(made)
        return Guard(ScriptedLocks(), *made)

    yield make
    for engine in engines:
        engine.dispose()


def declared(*names):
    metadata = sa.MetaData()
    for name in names:
        table = sa.Table(name, metadata, sa.Column("id", sa.BigInteger, primary_key=True))
        fenced_by(f"{name}:{{id}}")(table)
    return metadata


def errors(verification: Verification):
    return {(f.code, f.table) for f in verification.findings if f.severity == "error"}


def test_a_guard_verifies_its_database(make_guard, site):
    with make_guard() as guard:
        (found,) = guard.verify()
    assert isinstance(found, Verification)
    assert found.database == sa.make_url(site.url).database
    assert [table.name for table in found.tables if table.guarded] == [
        "public.accounts", "public.orders", "public.things", "public.trips",
    ]  # fmt: skip
    assert errors(found) == set()
    assert found.passes()


def test_against_what_is_declared(make_guard):
    with make_guard() as guard:
        (found,) = guard.verify(declared("accounts", "notes"))
    assert errors(found) == {("guard-missing", "public.notes")}
    assert not found.passes()


def test_of_several_databases_one_has_to_have_it(make_guard, site, own_site):
    with psycopg.connect(own_site.url) as connection:
        connection.execute("DROP TABLE orders; CREATE TABLE elsewhere (id bigint PRIMARY KEY)")
    urls = [each.url_of(each.app) for each in (site, own_site)]
    with make_guard(*urls) as guard:
        first, second = guard.verify(declared("accounts", "orders", "elsewhere", "nowhere"))
    assert errors(first) == {("table-absent", "nowhere")}
    assert errors(second) == {("table-absent", "nowhere"), ("guard-missing", "public.elsewhere")}
    assert "orders" not in {table.name for table in second.tables}


def test_what_is_no_metadata(make_guard):
    with make_guard() as guard, pytest.raises(TypeError, match="MetaData"):
        guard.verify(object())


@pytest.mark.parametrize("options", [{"isolation_level": "AUTOCOMMIT"}, {"pool_size": 1}])
def test_whatever_the_engine_is_like_and_beside_a_transaction(make_guard, options):
    guard = make_guard(**{"max_overflow": 0, **options})
    (engine,) = {database.admissions.engine for database in guard.databases}
    with guard, engine.connect() as busy:
        busy.execute(sa.text("SELECT 1"))
        assert errors(guard.verify()[0]) == set()


def test_it_leaves_no_connection_behind(make_guard, site):
    def sessions():
        with psycopg.connect(site.url) as connection:
            return connection.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE usename = %s", (site.app,)
            ).fetchone()

    with make_guard() as guard:
        guard.verify()
        # A session is listed until its process has ended.
        until(lambda: sessions() == (0,), "a session of it is left")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_the_same_for_asyncio(site, driver):
    engine = create_async_engine(sqlalchemy_url(site.url_of(site.app), driver))
    async with AsyncGuard(AsyncScriptedLocks(), engine) as guard:
        (found,) = await guard.verify(declared("accounts", "notes"))
    await engine.dispose()
    assert errors(found) == {("guard-missing", "public.notes")}


def test_both_have_one_signature():
    assert inspect.signature(Guard.verify) == inspect.signature(AsyncGuard.verify)

"""Alembic's own command line: on our environment, and on an application's that includes ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from fencing.migration import install, versions_path
from fencing.migration.environment import VERSION_TABLE
from tests.migration.catalog import catalog
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]

ENV = """
import os
from alembic import context
from sqlalchemy import NullPool, create_engine

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
else:
    engine = create_engine(os.environ["APPLICATION_URL"], poolclass=NullPool)
    with engine.connect() as connection:
        context.configure(connection=connection)
        with context.begin_transaction():
            context.run_migrations()
"""

ASYNC_ENV = """
import asyncio, os
from alembic import context
from sqlalchemy import NullPool
from sqlalchemy.ext.asyncio import create_async_engine

def run(connection):
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()

async def main():
    engine = create_async_engine(os.environ["APPLICATION_URL"], poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run)

asyncio.run(main())
"""

# It does not import fencing: the revision it depends on does.
ACCOUNTS = """
from alembic import op
import sqlalchemy as sa

revision = "0001"
down_revision = None
branch_labels = ("bank",)
depends_on = "fencing"

def upgrade():
    op.create_table('acc:oun"ts', sa.Column("id", sa.BigInteger, primary_key=True))
    op.fence_table('acc:oun"ts', resource="account:{id}", operations=["update", "delete"])

def downgrade():
    op.unfence_table('acc:oun"ts')
    op.drop_table('acc:oun"ts')
"""


def alembic(*arguments: str, url: str, ini: Path, offline: bool = False) -> str:
    done = subprocess.run(
        [
            *(sys.executable, "-W", "error", "-m", "alembic.config", "-c", str(ini)),
            *arguments,
            *(["--sql"] if offline else []),
        ],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "APPLICATION_URL": url,
            "FENCING_DATABASE_URL": url,
        },
        cwd=ini.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(params=["sync", "async"])
def application(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The alembic.ini of an application whose environment includes our branch."""
    (tmp_path / "versions").mkdir()
    (tmp_path / "env.py").write_text(ENV if request.param == "sync" else ASYNC_ENV)
    (tmp_path / "versions" / "0001_accounts.py").write_text(ACCOUNTS)
    ini = tmp_path / "alembic.ini"
    ini.write_text(
        "[alembic]\n"
        "script_location = %(here)s\n"
        "path_separator = os\n"
        f"version_locations = %(here)s/versions{os.pathsep}{versions_path()}\n"
    )
    return ini


@pytest.fixture
def run(database: str, application: Path) -> Callable[..., str]:
    return lambda *arguments, **more: alembic(*arguments, url=database, ini=application, **more)


def triggers(url: str) -> set[str]:
    return {str(row[2]) for row in catalog(url)["triggers"] if row[1] == 'acc:oun"ts'}


def test_an_application_upgrades_our_branch_with_its_own(run, database):
    run("upgrade", "heads")
    guard = {"fencing_update", "fencing_delete", "fencing_truncate", "fencing_pin"}
    assert triggers(database) == guard
    with psycopg.connect(plain_url(database)) as connection:
        versions = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    assert ("0001",) in versions


def test_its_migration_brings_ours_with_it(run, database):
    run("upgrade", "bank@head")
    assert triggers(database)


def test_there_and_back_leaves_nothing_but_alembics_own_table(run, database):
    empty = catalog(database)
    run("upgrade", "heads")
    upgraded = catalog(database)
    run("downgrade", "bank@base")
    run("downgrade", "base")
    assert catalog(database, without=("alembic_version",)) == empty
    run("upgrade", "heads")
    assert catalog(database) == upgraded


def test_our_branch_alone_has_a_label(run, database):
    run("upgrade", "fencing@head")
    assert not triggers(database)
    assert "fencing.fence" in {f"{row[0]}.{row[1]}" for row in catalog(database)["relations"]}


@pytest.mark.parametrize("application", ["sync"], indirect=True)
def test_offline_makes_the_same(run, database_factory, database):
    run("upgrade", "heads")
    with database_factory.empty() as by_script:
        with psycopg.connect(plain_url(by_script), autocommit=True) as connection:
            connection.execute(run("upgrade", "heads", offline=True).encode())
        assert catalog(by_script) == catalog(database)


OURS = ROOT / "migrations" / "alembic.ini"


def test_our_own_environment_runs_by_hand_and_install_goes_on_from_there(database):
    alembic("upgrade", "head", url=database, ini=OURS)
    assert install(database) == ()
    assert "fencing_0002 (head)" in alembic("current", url=database, ini=OURS)
    alembic("downgrade", "base", url=database, ini=OURS)
    assert "fence" not in {row[1] for row in catalog(database)["relations"]}


def test_our_own_environment_prints_what_install_would_do(database, database_factory):
    script = alembic("upgrade", "head", url=database, ini=OURS, offline=True)
    install(database)
    with database_factory.empty() as by_script:
        with psycopg.connect(plain_url(by_script), autocommit=True) as connection:
            connection.execute(script.encode())
        assert catalog(by_script) == catalog(database)
        assert install(by_script) == ()


def test_the_revision_is_recorded_in_a_table_of_its_own(database):
    install(database)
    relations = catalog(database)["relations"]
    assert {row[1] for row in relations if row[0] != "fencing" and row[2] == "r"} == {VERSION_TABLE}

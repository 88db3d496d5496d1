"""``fencing verify``, as a command: what it prints, and its exit status."""

from __future__ import annotations

import json
import sys

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from fencing.cli.main import main
from fencing.schema import ddl
from tests.schema.sql import run

SECRET = "geheim"

MODELS = """
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from fencing import fenced_by

class Base(DeclarativeBase):
    pass

@fenced_by("accounts:{id}")
class Account(Base):
    __tablename__ = "accounts"
    id: Mapped[int] = mapped_column(primary_key=True)

@fenced_by("note:{id}")
class Note(Base):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)

metadata = sa.MetaData()
sa.Table("nowhere", metadata, sa.Column("id", sa.Integer))
nothing = object()
"""


def call(*arguments: str, **environment: str):
    return CliRunner().invoke(
        main, ["verify", *arguments], env={"FENCING_DATABASE_URL": None, **environment}
    )


@pytest.fixture
def url(site) -> str:
    """As the application."""
    return site.url_of(site.app)


@pytest.fixture
def broken(own_site) -> str:
    with psycopg.connect(own_site.url) as connection:
        connection.execute("ALTER TABLE accounts DISABLE TRIGGER fencing_update")
        run(connection, ddl.alter_fence("orders", mode="observe"))
    return own_site.url_of(own_site.app)


@pytest.fixture
def models(tmp_path, monkeypatch):
    name = f"models_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODELS, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield name
    sys.modules.pop(name, None)


def test_a_healthy_database_is_status_0(url):
    result = call(url)
    assert result.exit_code == 0, result.output
    assert "public.accounts  accounts:{id}  insert, update, delete" in result.output
    assert "0 errors" in result.output


def test_the_url_comes_from_the_environment_as_well(url):
    assert call(FENCING_DATABASE_URL=url).exit_code == 0


def test_a_fault_is_status_1_and_is_told_with_its_table_and_what_to_do(broken):
    result = call(broken)
    assert result.exit_code == 1
    blocks = {block.split("  ")[0]: block for block in result.output.split("\n\n")}
    assert "error    trigger-disabled: the trigger fencing_update is" in blocks["public.accounts"]
    assert (
        '-> ALTER TABLE public.accounts ENABLE ALWAYS TRIGGER "fencing_update"'
        in blocks["public.accounts"]
    )
    assert "guard-observes" in blocks["public.orders"]


def test_a_warning_fails_only_when_strict(own_site):
    with psycopg.connect(own_site.url) as connection:
        run(connection, ddl.alter_fence("orders", mode="observe"))
    url = own_site.url_of(own_site.app)
    assert call(url).exit_code == 0
    assert call(url, "--strict").exit_code == 1


def test_json_has_the_documented_keys(broken):
    result = call(broken, "--json")
    assert result.exit_code == 1
    told = json.loads(result.output)
    assert set(told) == {"database", "schema_version", "tables", "findings", "counts"}
    assert told["schema_version"] == ddl.SCHEMA_VERSION
    assert told["database"] == make_url(broken).database
    assert told["tables"][0] == {
        "name": "public.accounts",
        "guarded": True,
        "declared": None,
        "resource": "accounts:{id}",
        "operations": ["insert", "update", "delete"],
        "mode": "enforce",
        "parts": [],
    }
    assert told["counts"]["error"] == 1
    finding = told["findings"][0]
    assert set(finding) == {"severity", "code", "message", "remedy", "table", "subject"}
    assert (finding["severity"], finding["code"]) == ("error", "trigger-disabled")
    assert (finding["table"], finding["subject"]) == ("public.accounts", "fencing_update")


def test_no_schema_is_a_finding_and_no_traceback(database):
    result = call(database)
    assert result.exit_code == 1
    assert "schema-missing" in result.output
    assert "Traceback" not in result.output


def test_models_tell_what_should_be_guarded(url, models):
    result = call(url, "--models", f"{models}:Base")
    assert result.exit_code == 1
    assert "public.notes  note:{id}  insert, update, delete  NOT GUARDED" in result.output
    assert "guard-missing" in result.output
    assert call(url, "--models", f"{models}:Base.metadata").output == result.output
    assert call(url, "--models", f"{models}:metadata").exit_code == 0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("{}:nobody", "has no nobody"),
        ("{}", "takes package.module:name"),
        ("no_such_module:Base", "No module named"),
        ("{}:nothing", "declarations are in a MetaData"),
    ],
)
def test_models_that_are_not_there_are_status_2(url, models, name, words):
    result = call(url, "--models", name.format(models))
    assert result.exit_code == 2
    assert words in result.output


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("raise RuntimeError('no settings\\nat all')", "RuntimeError: no settings at all;"),
        ("raise KeyError('HOME')", "KeyError: 'HOME';"),
        ("raise ImportError('half')", "ImportError: half;"),
        ("raise AssertionError", "AssertionError;"),
        ("def broken(:", "SyntaxError: "),
        ("raise SystemExit(0)", "SystemExit: 0;"),
        ("def __getattr__(name): raise RuntimeError('later')", "RuntimeError: later;"),
    ],
)
def test_a_module_that_raises_is_told_and_status_2(url, models, tmp_path, source, told):
    (tmp_path / f"raising_{models}.py").write_text(source, "utf-8")
    result = call(url, "--models", f"raising_{models}:Base")
    assert result.exit_code == 2
    assert f"importing raising_{models} raised {told}" in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:1/x",
        f"postgresql://u:{SECRET}@h:port/x",
        f"postgresql+nosuch://u:{SECRET}@127.0.0.1:1/x",
        "sqlite:///x",
        "x",
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_what_cannot_be_looked_at_is_status_2_in_one_line(url, as_json):
    result = call(url, *(["--json"] if as_json else []))
    assert result.exit_code == 2
    assert result.output.startswith("Error: ")
    assert result.output.count("\n") == 1
    assert SECRET not in result.output


def test_no_url_says_what_is_missing():
    result = call()
    assert result.exit_code == 2
    assert "FENCING_DATABASE_URL" in result.output


def test_a_database_has_no_namespaces(url):
    result = call(url, "--namespace", "mine")
    assert result.exit_code == 2
    assert "there are no namespaces in PostgreSQL" in " ".join(result.output.split())


def test_a_password_is_never_printed(site, url):
    with psycopg.connect(site.url) as connection:
        # Where the server trusts everybody, any will do.
        if connection.execute(
            "SELECT count(*) FROM pg_hba_file_rules WHERE auth_method <> 'trust'"
        ).fetchone() != (0,):
            pytest.skip("needs a server that takes any password")
    secret = make_url(url).set(password=SECRET).render_as_string(hide_password=False)
    for arguments in ([secret], [secret, "--json"]):
        result = call(*arguments)
        assert result.exit_code == 0
        assert SECRET not in result.output

"""Setting a fence forward: the one way for an administrator, and only forward."""

from __future__ import annotations

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import make_url

from fencing.administration import Raised, raise_fence
from fencing.cli.main import main
from fencing.errors import FencingUsageError, GuardNotInstalledError, LockNotAcquiredError
from fencing.schema import ddl
from tests.retention.conftest import age, prune, tokens
from tests.schema.sql import ALICE, BOB, admit, enter, mark, refused, run

FAR = 2**53 - 1


def test_it_tells_what_the_mark_was_and_overtakes_the_holder(owner, fenced_database):
    admit(owner, 7, resource="a")
    assert raise_fence(fenced_database, "a", 100) == Raised(before=7, after=100)
    with refused("ZF001"), owner.transaction():
        enter(owner, ("a", 7, ALICE))
    for token in (99, 100):
        with refused("ZF001"):
            admit(owner, token, BOB, resource="a")
    assert admit(owner, 101, BOB, resource="a")


def test_it_goes_beyond_the_bound_of_admissions(owner, fenced_database):
    admit(owner, 7, resource="a")
    with refused("ZF004"):
        admit(owner, FAR, BOB, resource="a")
    assert raise_fence(fenced_database, "a", FAR) == Raised(before=7, after=FAR)


def test_a_resource_without_a_fence_gets_one(owner, fenced_database):
    assert raise_fence(fenced_database, "new", 5) == Raised(before=0, after=5)
    assert tokens(owner) == {"new": 5}


def test_of_a_pruned_fence_the_floor_is_what_it_was(owner, fenced_database):
    admit(owner, 7, resource="a")
    age(owner)
    prune(owner)
    with pytest.raises(FencingUsageError, match="the mark of 'a' is 7"):
        raise_fence(fenced_database, "a", 7)
    assert raise_fence(fenced_database, "a", 8) == Raised(before=7, after=8)


@pytest.mark.parametrize("token", [6, 7])
def test_it_never_moves_a_mark_backwards(owner, fenced_database, token):
    admit(owner, 7, resource="a")
    with pytest.raises(FencingUsageError, match="pass a token above 7"):
        raise_fence(fenced_database, "a", token)
    assert mark(owner, "a") == (7, ALICE)


def test_each_time_it_is_a_holder_of_its_own_that_nobody_knows(owner, fenced_database):
    holders = set()
    for token in (1, 2):
        raise_fence(fenced_database, "a", token)
        holders.add(mark(owner, "a")[1])
    assert len(holders) == 2
    assert all(len(holder) > 40 for holder in holders)


def test_it_does_not_wait_for_ever_for_who_has_written(owner, connect, fenced_database):
    owner.execute("CREATE TABLE t (id text)")
    run(owner, ddl.fence_table("t", "{id}"))
    admit(owner, 7, resource="a")
    holder = connect(autocommit=False)
    enter(holder, ("a", 7, ALICE))
    holder.execute("INSERT INTO t VALUES ('a')")
    with pytest.raises(LockNotAcquiredError, match=r"within 0\.01 s; nothing was changed"):
        raise_fence(fenced_database, "a", 8, timeout=0.01)
    holder.commit()
    assert raise_fence(fenced_database, "a", 8).before == 7


def test_who_has_only_read_is_overtaken_at_once(owner, connect, fenced_database):
    owner.execute("CREATE TABLE t (id text)")
    run(owner, ddl.fence_table("t", "{id}"))
    admit(owner, 7, resource="a")
    holder = connect(autocommit=False)
    enter(holder, ("a", 7, ALICE))
    raise_fence(fenced_database, "a", 8)
    with refused("ZF001"):
        holder.execute("INSERT INTO t VALUES ('a')")


@pytest.mark.parametrize("resource", ["", "x" * 513, "a\0b"])
def test_a_resource_that_cannot_be(fenced_database, resource):
    with pytest.raises(ValueError, match="resource"):
        raise_fence(fenced_database, resource, 1)


@pytest.mark.parametrize("timeout", [float("nan"), float("inf"), -float("inf"), -1, 0, 1e9])
def test_a_timeout_that_cannot_be_is_named(fenced_database, owner, timeout):
    with pytest.raises(ValueError, match=r"^timeout is 0\.001 to 2000000 seconds, not "):
        raise_fence(fenced_database, "a", 1, timeout=timeout)
    assert tokens(owner) == {}


def test_a_timeout_that_is_no_number_is_named(fenced_database):
    with pytest.raises(TypeError, match=r"^timeout is a number of seconds, not '1'"):
        raise_fence(fenced_database, "a", 1, timeout="1")


def test_a_database_without_the_schema(database):
    with pytest.raises(GuardNotInstalledError):
        raise_fence(database, "a", 1)


def call(*arguments):
    return CliRunner().invoke(main, ["raise", *arguments])


@pytest.mark.parametrize("token", ["0", str(FAR + 1), "9" * 5000, "seven", "\u0667"])
def test_a_token_that_is_none_is_not_repeated(token):
    result = call("postgresql://localhost/database", "a", token)
    assert result.exit_code == 2
    assert "a whole number from 1 to 2^53 - 1" in result.output
    assert token not in result.output.replace("from 1 to 2^53 - 1", "")


def test_the_command_says_both(owner, fenced_database):
    name = make_url(fenced_database).database
    admit(owner, 5, resource="a")
    result = call(fenced_database, "a", "9")
    assert result.exit_code == 0
    assert result.output.startswith(f'Raised the mark of "a" in database "{name}"')
    assert "from 5 to 9; who held it is overtaken." in result.output
    assert tokens(owner) == {"a": 9}


def test_a_name_that_nobody_has_used_here_may_be_a_wrong_one(fenced_database):
    result = call(fenced_database, "acount:42", "5")
    assert result.exit_code == 0
    assert "from none to 5; no holder of it was ever admitted in this database" in result.output
    assert "see that the name is right" in result.output
    assert "who held it is overtaken" not in result.output


def test_what_the_command_refuses_is_one_line(fenced_database):
    call(fenced_database, "a", "5")
    result = call(fenced_database, "a", "5")
    assert result.exit_code == 1
    assert result.output == (
        "Error: the mark of 'a' is 5, and a fence only ever moves forward: pass a token above 5\n"
    )
    for token in ("0", "-1", str(2**53), "x"):
        assert call("--", fenced_database, "a", token).exit_code == 2


@pytest.mark.parametrize("timeout", ["nan", "-nan", "inf", "-inf", "0", "86401", "x"])
def test_a_timeout_that_is_none_is_a_mistake_in_the_call(fenced_database, owner, timeout):
    result = call(fenced_database, "a", "5", f"--timeout={timeout}")
    assert result.exit_code == 2
    assert "Invalid value for '--timeout'" in result.output
    assert tokens(owner) == {}


def test_who_is_not_the_owner_is_told_so_in_one_line(owner, fenced_database):
    role = f"app_{make_url(fenced_database).database}"
    owner.execute(f"CREATE ROLE {role} LOGIN".encode())
    try:
        url = make_url(fenced_database).set(username=role).render_as_string(hide_password=False)
        result = call(url, "a", "5")
    finally:
        owner.execute(f"DROP ROLE {role}".encode())
    assert result.exit_code == 1
    assert result.output == (
        "Error: permission denied for function raise_fence: this is for the owner of schema "
        "fencing, or a member of its role; connect as one\n"
    )


def test_a_database_that_is_not_there():
    result = call("postgresql://u:geheim@127.0.0.1:1/x", "a", "5")
    assert result.exit_code == 1
    assert result.output.count("\n") == 1
    assert "geheim" not in result.output


def test_psycopg_has_nothing_to_do_with_it(owner):
    """The function is there for everybody who has the right."""
    owner.execute("SELECT fencing.raise_fence('a', 3)")
    with pytest.raises(psycopg.Error, match="was presented with token 3"):
        owner.execute("SELECT fencing.raise_fence('a', 3)")


def test_a_url_in_the_wrong_place_is_not_repeated(fenced_database):
    url = make_url(fenced_database).set(password="secret").render_as_string(hide_password=False)
    result = CliRunner().invoke(main, ["raise", "account:42", "5", url])
    assert result.exit_code == 2
    assert "secret" not in result.output
    assert "URL RESOURCE TOKEN" in result.output


def test_half_a_password_is_not_taken_for_a_host(fenced_database):
    url = fenced_database.replace("postgres@", "postgres:half@secret@")
    result = CliRunner().invoke(main, ["raise", url, "account:42", "5"])
    assert result.exit_code == 1
    assert "secret" not in result.output
    assert "%40" in result.output

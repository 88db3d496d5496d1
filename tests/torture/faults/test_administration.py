"""What administrators do beside others does what it says, and is undone."""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from fencing import administration
from fencing.torture.faults.administration import (
    MIGRATIONS,
    apply,
    migrate,
    prune,
    raise_a_fence,
    set_timeouts,
)
from fencing.torture.tables import SCHEMA
from tests.torture.faults.conftest import begin, perform, value

TIMEOUTS = text("SELECT count(*) FROM pg_settings WHERE name LIKE '%timeout' AND source = 'user'")
GUARDS = text(
    "SELECT tgname, obj_description(oid, 'pg_trigger') FROM pg_trigger "
    "WHERE tgrelid = 'torture.register'::regclass ORDER BY 1"
)
MARKS = "SELECT sum(coalesce(fencing.mark(concat('register:', n)), 0)) FROM generate_series(1, 2) n"


def count_timeouts(connection):
    with connection.begin():
        return connection.execute(TIMEOUTS).scalar_one()


@pytest.fixture
def long(stage, monkeypatch):
    """Leases so long that no timeout ends what this test does itself."""
    monkeypatch.setattr(stage, "settings", dataclasses.replace(stage.settings, ttl=60.0))


def test_timeouts_reach_new_sessions_and_end_with_them(stage, chance, connect, long):
    striking = set_timeouts(stage, chance)
    begin(striking)
    during = connect()
    assert count_timeouts(during) in (1, 2)
    perform(striking)
    with pytest.raises(OperationalError):
        count_timeouts(during)
    assert count_timeouts(connect()) == 0


def test_timeouts_that_are_ended_early_are_gone(stage, chance, connect, long):
    striking = set_timeouts(stage, chance)
    next(striking)
    striking.close()
    assert count_timeouts(connect()) == 0
    striking = set_timeouts(stage, chance)
    begin(striking)
    assert count_timeouts(connect()) > 0
    striking.close()
    assert count_timeouts(connect()) == 0


@pytest.fixture
def admitted(stage):
    """A resource with a fence, and its mark."""
    with stage.owner.begin() as connection:
        mark = connection.execute(text("SELECT fencing.mark('register:1')")).scalar() or 0
        connection.execute(
            text("SELECT fencing.raise_fence('register:1', :token)"), {"token": mark + 10}
        )
    return mark + 10


def test_a_young_fence_is_pruned_and_its_mark_kept(stage, chance, admitted):
    fences = "SELECT count(*) FROM fencing.fence WHERE resource = 'register:1'"
    assert value(stage.owner, fences) == 1
    while value(stage.owner, fences):  # when it is old enough
        perform(prune(stage, chance))
    assert value(stage.owner, "SELECT fencing.mark('register:1')") >= admitted


def test_pruning_leaves_the_installed_function_alone(stage, chance):
    perform(prune(stage, chance))
    with pytest.raises(Exception, match="an hour"):
        value(stage.owner, "SELECT fencing.prune('1 second')")


@pytest.mark.parametrize("name", MIGRATIONS)
def test_a_migration_leaves_the_guards_as_they_were(stage, name):
    def guards():
        with stage.owner.connect() as connection:
            found = connection.execute(GUARDS).all()
        return found, administration.verify_url(stage.postgres.url)

    before = guards()
    assert apply(stage.owner, MIGRATIONS[name], "register", 5.0)
    assert guards() == before


@pytest.mark.parametrize("name", ["unfenced and fenced", "altered and back", "maintained"])
def test_a_migration_gives_up_if_others_do_not(stage, name):
    with stage.owner.connect() as other, other.begin():
        other.execute(text(f"LOCK TABLE {SCHEMA}.register IN ROW EXCLUSIVE MODE"))
        assert not apply(stage.owner, MIGRATIONS[name], "register", 0.01)


def test_every_migration_comes(stage, monkeypatch):
    came = []
    for name in MIGRATIONS:
        monkeypatch.setitem(MIGRATIONS, name, lambda *_, name=name: came.append(name))
    for seed in range(50):
        perform(migrate(stage, Random(seed)))
    assert set(came) == set(MIGRATIONS)


def test_a_mark_is_raised_by_hand(stage):
    before, seed = value(stage.owner, MARKS), 0
    while value(stage.owner, MARKS) == before:  # it may choose another resource
        perform(raise_a_fence(stage, Random(seed)))
        seed += 1
    assert value(stage.owner, MARKS) > before

"""A standby that takes over has lost what it had not heard of, and serves at the old address."""

from __future__ import annotations

import psycopg

from fencing.torture.faults import standby
from fencing.torture.faults.kinds import available
from fencing.torture.services import lock_servers
from fencing.torture.settings import Settings
from fencing.torture.stage import Stage
from tests.torture.faults.conftest import begin, perform


def numbers(server):
    with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        return [n for (n,) in connection.execute("SELECT n FROM public.number ORDER BY n")]


def write(server, number):
    with psycopg.connect(server.url.replace("+psycopg", "")) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS public.number (n int)")
        connection.execute("INSERT INTO public.number VALUES (%s)", [number])


def test_a_promoted_standby_has_lost_what_was_committed_last(chance):
    with Stage(Settings(ttl=0.05), lock_servers("redis")) as stage:
        old, port = stage.postgres, stage.postgres.port
        write(old, 1)
        striking = standby.promote(stage, chance)
        begin(striking)  # nothing reaches the standby any more
        write(old, 2)
        perform(striking)
        assert stage.postgres is not old
        assert stage.postgres.port == port
        assert numbers(stage.postgres) == [1]
        assert numbers(old) == [1, 2]  # where no worker looks
        write(stage.postgres, 3)
        assert numbers(stage.postgres) == [1, 3]


def test_it_must_be_asked_for():
    with Stage(Settings(), lock_servers("redis")) as stage:
        assert "standby promoted" not in {kind.name for kind in available(stage, None)}
        (kind,) = available(stage, ("standby promoted",))
        assert kind.loses_acknowledged

"""The fixtures every other test relies on."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from tests.support.databases import DatabaseFactory, plain_url
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from fencing.embedded import ValkeyProcess
    from tests.support.child import Parent


class TestDatabases:
    def test_a_test_has_an_empty_database_of_its_own(
        self, database: str, database_url: str, database_factory: DatabaseFactory
    ) -> None:
        with psycopg.connect(plain_url(database)) as connection:
            connection.execute("CREATE TABLE mine ()")
        assert database != database_url
        with database_factory.empty() as other, psycopg.connect(plain_url(other)) as connection:
            assert connection.execute("SELECT to_regclass('mine')").fetchone() == (None,)

    def test_a_database_is_dropped_with_sessions_open(
        self, database_factory: DatabaseFactory
    ) -> None:
        with database_factory.empty() as url:
            connection = psycopg.connect(plain_url(url))
        with connection, pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")

    def test_a_fenced_database_has_the_schema(self, fenced_database: str) -> None:
        with psycopg.connect(plain_url(fenced_database)) as connection:
            assert connection.execute("SELECT to_regclass('fencing.fence')").fetchone() != (None,)


class TestRedis:
    def test_the_namespace_is_emptied(
        self, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        redis_client.set(f"{redis_namespace}:x", 1)

    def test_a_servers_outage_keeps_its_address(self, own_valkey: ValkeyProcess) -> None:
        with redis.Redis.from_url(own_valkey.url, retry=None) as client:
            client.set("x", 1)
            own_valkey.kill()
            with pytest.raises(redis.ConnectionError):
                client.get("x")
            own_valkey.start()
            assert client.get("x") is None


def talk(parent: Parent, number: int) -> None:
    sys.stdout.write("this goes to stderr\n")
    parent.report("hello", number=number, pid=os.getpid())
    parent.wait_for("go on")
    parent.report("bye")


async def talk_async(parent: Parent) -> None:
    parent.report("hello")


def fail(parent: Parent) -> None:
    raise RuntimeError("no luck")


class TestProcesses:
    def test_a_child_reports_and_obeys(self) -> None:
        with ChildProcess(talk, 7) as child:
            hello = child.wait_for("hello")
            assert (hello["number"], hello["pid"]) == (7, child.pid)
            child.suspend()
            child.tell("go on")
            with pytest.raises(AssertionError, match="did not report 'bye' in time"):
                child.wait_for("bye", timeout=0.2)
            child.resume()
            child.wait_for("bye")
            assert child.wait() == 0
            assert "this goes to stderr" in child.stderr()

    def test_a_coroutine_function_is_run(self) -> None:
        with ChildProcess(talk_async) as child:
            child.wait_for("hello")
            child.check()

    def test_a_childs_failure_is_told(self) -> None:
        with ChildProcess(fail) as child, pytest.raises(AssertionError, match="no luck"):
            child.wait_for("hello")
        with ChildProcess(fail) as child, pytest.raises(AssertionError, match="no luck"):
            child.check()

    def test_a_child_that_has_ended_cannot_be_suspended(self) -> None:
        with ChildProcess(fail) as child:
            child.wait()
            child.kill()

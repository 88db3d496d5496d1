"""What is done to locks in PostgreSQL is done."""

from __future__ import annotations

import psycopg
import pytest

from fencing.errors import LeaseLostError
from tests.support.striking import Most, fixture_of, struck

pytestmark = pytest.mark.slow


@pytest.fixture(params=["postgres", "postgres-apart"])
def database(request, fenced_database):
    with struck(request.param, fenced_database) as servers:
        yield servers


apart = fixture_of("postgres-apart")


@pytest.mark.parametrize("name", ["locks deleted", "locks ended"])
def test_locks_are_gone(database, name):
    with database.locks() as locks:
        locks.acquire("a", ttl=60.0)
        database.perform(name)
        assert not locks.locked("a")


def test_tokens_are_set_back_and_those_that_are_issued_are_not(database):
    with database.locks() as locks:
        for _ in range(9):
            locks.acquire("a").release()
        lease = locks.acquire("a", ttl=5.0)
        database.perform("tokens set back", Most())
        assert locks.inspect("a").token == 5
        with pytest.raises(LeaseLostError, match="not ours"):
            lease.renew()
        assert locks.acquire("a", blocking_timeout=90.0).token > lease.token


def test_killed_it_keeps_its_locks(apart):
    with apart.locks() as locks:
        locks.acquire("a", ttl=60.0)
        apart.perform("lock database killed")
        assert locks.locked("a")
    assert not apart.kinds["lock database killed"].breaks_order


def test_nothing_of_it_answers_for_a_while(apart):
    with apart.servers.connected() as connection:
        connection.execute("SELECT 1")
        with apart.during("lock database stopped"):
            connection.pgconn.send_query(b"SELECT 2")
            connection.pgconn.flush()
            assert connection.pgconn.is_busy()
            with pytest.raises(psycopg.OperationalError), apart.servers.connected():
                pass
        results = iter(connection.pgconn.get_result, None)
        assert [result.get_value(0, 0) for result in results] == [b"2"]

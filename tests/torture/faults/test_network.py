"""What a network does to packets is done to them, and is over afterwards."""

from __future__ import annotations

import dataclasses
import threading
from contextlib import closing
from random import Random

import psycopg
import pytest

from fencing.torture.faults import clocks, network
from fencing.torture.faults.missing import MissedError
from fencing.torture.history import Outcome
from fencing.torture.paths import PATHS
from fencing.torture.recording import read_records
from tests.torture.faults.conftest import begin, perform, value

INSERT = "INSERT INTO public.packet VALUES (1)"


@pytest.fixture(autouse=True)
def long(stage, monkeypatch):
    """Leases so long that no fault gives up waiting for its packet."""
    monkeypatch.setattr(stage, "settings", dataclasses.replace(stage.settings, ttl=60.0))


@pytest.fixture
def packets(stage):
    """How many packets have done something."""
    with psycopg.connect(stage.postgres.url.replace("+psycopg", ""), autocommit=True) as owner:
        owner.execute("CREATE TABLE public.packet (n int)")
        owner.execute("GRANT ALL ON public.packet TO PUBLIC")
        yield lambda: owner.execute("SELECT count(*) FROM public.packet").fetchone()[0]
        owner.execute("DROP TABLE public.packet")


def sessions(stage):
    return value(stage.owner, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'it'")


@pytest.fixture
def way(stage):
    """A session of a worker, through every proxy that there is: so there may be one alone."""
    only = min(stage.ways.databases)
    hidden = {n: stage.ways.databases.pop(n) for n in list(stage.ways.databases) if n != only}
    url = stage.ways.databases[only].url
    with closing(psycopg.connect(url, autocommit=True, application_name="it")) as connection:
        yield connection
    stage.ways.databases.update(hidden)


class Client(threading.Thread):
    """Commits a packet, and notes what it is told."""

    def __init__(self, connection):
        super().__init__()
        self.connection, self.error = connection, None
        self.start()

    def run(self):
        try:
            with self.connection.transaction():
                self.connection.execute(INSERT)
        except psycopg.OperationalError as error:
            self.error = error


def struck_client(striking, way):
    """A client whose packet is held."""
    next(striking)  # whom it strikes
    next(striking)  # it waits for the packet
    client = Client(way)
    begin(striking)
    return client


@pytest.mark.parametrize("seed", range(4))
def test_a_held_commit_arrives_late(stage, way, packets, seed):
    striking = network.hold_commit(stage, Random(seed))
    client = struck_client(striking, way)
    assert packets() == 0
    perform(striking)
    client.join()
    while not packets():  # its client may be gone since long
        pass


def test_a_held_commit_is_delivered_if_the_fault_is_ended_early(stage, way, packets):
    striking = network.hold_commit(stage, Random(1))
    client = struck_client(striking, way)
    striking.close()
    client.join()
    while not packets():
        pass


def test_a_lost_commit_never_arrives(stage, way, packets, chance):
    striking = network.lose_commit(stage, chance)
    next(striking)
    next(striking)
    client = Client(way)
    perform(striking)
    client.join()
    assert client.error
    while sessions(stage):
        pass
    assert packets() == 0


def test_an_answer_is_lost_and_the_commit_is_not(stage, way, packets, chance):
    striking = network.lose_commits_answer(stage, chance)
    next(striking)
    next(striking)
    client = Client(way)
    perform(striking)
    client.join()
    assert client.error
    assert packets() == 1


def test_a_silent_connection_loses_what_is_said(stage, way, packets):
    striking = network.silence(stage, Random(2))
    hide_services(stage, striking)
    way.pgconn.send_query(INSERT.encode())
    striking.close()
    while sessions(stage):
        pass
    assert packets() == 0


def hide_services(stage, striking):
    """Begin a fault on the way to the database."""
    hidden = dict(stage.ways.services)
    stage.ways.services.clear()
    try:
        begin(striking)
    finally:
        stage.ways.services.update(hidden)


def test_parted_from_each_other_they_hear_it_afterwards(stage, way, packets, chance):
    striking = network.part(stage, chance)
    hide_services(stage, striking)
    client = Client(way)
    assert packets() == 0
    perform(striking)
    client.join()
    assert client.error is None
    assert packets() == 1


def test_refused_connections_are_accepted_afterwards(stage, way, chance):
    striking, url = network.refuse(stage, chance), min(stage.ways.databases.items())[1].url
    hide_services(stage, striking)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    perform(striking)
    psycopg.connect(url).close()


def test_cut_connections_are_closed(stage, way, chance):
    perform(network.cut(stage, chance))
    with pytest.raises(psycopg.OperationalError):
        way.execute("SELECT 1")


def test_a_slow_network_is_fast_again(stage, way):
    proxy = min(stage.ways.databases.items())[1]
    striking = network.delay(stage, Random(3))
    hide_services(stage, striking)
    assert proxy._delays != (0.0, 0.0)
    perform(striking)
    assert proxy._delays == (0.0, 0.0)


@pytest.mark.parametrize("path", PATHS)
def test_admissions_and_commits_are_found_on_every_path(stage, path):
    """A worker's own: each driver says them in its own way."""
    unit = {"kind": "add", "targets": [1], "ttl": 60.0, "patience": 60.0}
    stage.start_worker(0, stops=False, deaths=False, path=path, script=(unit,))
    worker = stage.workers[-1]
    hidden = {n: stage.ways.databases.pop(n) for n in list(stage.ways.databases) if n != 0}
    try:
        for fault in (network.hold_admission, network.hold_commit):
            striking = fault(stage, Random(0))  # which does not cut its client off
            assert next(striking) == "w0"
            begin(striking)
            perform(striking)
        assert worker.await_end(60) == 0, worker.last_words()
    finally:
        stage.ways.databases.update(hidden)
        record = worker.plan.record
        stage.forget(worker)
    told = [each for each in read_records(stage.records / record) if each["event"] == "told"]
    assert [each["outcome"] for each in told] == [Outcome.COMMITTED]


def test_a_workers_clock_jumps_and_comes_back(stage, chance):
    if not stage.ways.clocks:
        pytest.skip("no false clocks here")
    striking = clocks.jump(stage, chance)
    name = next(striking)
    clock = stage.ways.clocks[int(name.removeprefix("w"))]
    assert clock.seconds == 0.0
    next(striking)
    assert clock.seconds != 0.0
    striking.close()
    assert clock.seconds == 0.0


def test_without_a_proxy_a_fault_of_the_network_comes_to_nothing(stage, chance, monkeypatch):
    monkeypatch.setattr(stage.ways, "databases", {})
    monkeypatch.setattr(stage.ways, "services", {})
    for fault in (network.cut, network.hold_commit, network.lose_lock_services_answer):
        with pytest.raises(MissedError):
            perform(fault(stage, chance))

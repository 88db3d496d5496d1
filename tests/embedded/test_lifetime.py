"""No server outlives the process that started it, however that ends."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from fencing import embedded
from tests.support.databases import plain_url
from tests.support.processes import ChildProcess, Watch

if TYPE_CHECKING:
    from tests.support.child import Parent

only_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere nothing outlives a killed supervisor"
)


def hold_servers(parent: Parent, ending: str) -> None:
    """Start both servers, say where they are, and end in this way."""
    with embedded.start(in_memory=True) as servers:
        announce(parent, servers)
        parent.wait_for("end")
        if ending == "raise":
            raise RuntimeError("the work has failed")
        if ending == "exit without leaving the block":
            os._exit(3)


def hold_servers_with_a_fork(parent: Parent) -> None:
    """Be a parent whose forked child still has the pipe to the supervisors."""
    servers = embedded.start(in_memory=True)
    announce(parent, servers)
    if os.fork() == 0:
        servers.stop()  # not the child's to stop
        parent.report("the child has tried to stop them")
        signal.pause()
    parent.wait_for("end")


def announce(parent: Parent, servers: embedded.EmbeddedServers) -> None:
    processes = [server.process for server in (servers.postgres, servers.valkey) if server]
    parent.report(
        "started",
        supervisors=[process.supervisor_pid for process in processes],
        servers=[process.pid for process in processes],
        directories=[str(process.directory) for process in processes],
        urls=[servers.database_url, servers.redis_url],
    )


def assert_serving(urls: list[str]) -> None:
    with psycopg.connect(plain_url(urls[0])) as connection:
        connection.execute("SELECT 1")
    with redis.Redis.from_url(urls[1]) as client:
        client.ping()


class TestTheParentEnds:
    @pytest.mark.parametrize(
        "ending", ["leave the block", "raise", "exit without leaving the block"]
    )
    def test_by_itself(self, ending: str) -> None:
        with ChildProcess(hold_servers, ending) as child:
            facts = child.wait_for("started")
            assert_serving(facts["urls"])
            with Watch(facts["supervisors"]) as everything:
                child.tell("end")
                everything.wait()
            assert not any(Path(directory).exists() for directory in facts["directories"])

    @pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    def test_by_a_signal(self, number: signal.Signals) -> None:
        with ChildProcess(hold_servers, "") as child:
            facts = child.wait_for("started")
            with Watch(facts["supervisors"]) as everything:
                # Like the keyboard: to the whole group in the foreground.
                os.killpg(child.pid, number)
                everything.wait()
            assert not any(Path(directory).exists() for directory in facts["directories"])

    def test_killed_while_a_forked_child_of_it_lives(self) -> None:
        with ChildProcess(hold_servers_with_a_fork) as child:
            facts = child.wait_for("started")
            try:
                child.wait_for("the child has tried to stop them", timeout=60)
                assert_serving(facts["urls"])
                with Watch(facts["supervisors"]) as everything:
                    child.kill()
                    everything.wait()
                assert not any(Path(directory).exists() for directory in facts["directories"])
            finally:
                os.killpg(child.pid, signal.SIGKILL)


class TestASupervisorIsKilled:
    @only_linux
    def test_its_server_dies_with_it(self) -> None:
        with embedded.start(in_memory=True) as servers:
            assert servers.postgres is not None
            assert servers.valkey is not None
            for process in (servers.postgres.process, servers.valkey.process):
                with Watch([process.supervisor_pid]) as everything:
                    os.kill(process.supervisor_pid, signal.SIGKILL)
                    everything.wait()
            with pytest.raises(embedded.EmbeddedServerError, match="its supervisor has ended"):
                servers.wait()
        assert not servers.postgres.process.directory.exists()
        assert not servers.valkey.process.directory.exists()

    @only_linux
    def test_and_the_parent_with_it(self) -> None:
        with ChildProcess(hold_servers, "") as child:
            facts = child.wait_for("started")
            with Watch([child.pid, *facts["supervisors"]]) as everything:
                for pid in (child.pid, *facts["supervisors"]):
                    os.kill(pid, signal.SIGKILL)
                everything.wait()
            for directory in facts["directories"]:  # nobody is left to remove them
                shutil.rmtree(directory, ignore_errors=True)

    def test_asked_to_end_it_ends_its_server(self) -> None:
        with embedded.ValkeyProcess() as valkey:
            with Watch([valkey.process.supervisor_pid]) as everything:
                os.kill(valkey.process.supervisor_pid, signal.SIGTERM)
                everything.wait()
            assert not valkey.process.directory.exists()


class TestAServerEnds:
    def test_waiting_tells(self) -> None:
        with embedded.start(postgres=False) as servers:
            assert servers.redis_pid is not None
            os.kill(servers.redis_pid, signal.SIGKILL)
            with pytest.raises(embedded.EmbeddedServerError, match=r"valkey has ended with .* -9"):
                servers.wait()

    @pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
    def test_a_suspended_server_has_stopped(self) -> None:
        with embedded.ValkeyProcess() as valkey:
            for _ in range(50):
                valkey.suspend()
                threads = Path(f"/proc/{valkey.pid}/task").glob("*/stat")
                states = [stat.read_text().rpartition(")")[2].split()[0] for stat in threads]
                assert set(states) == {"T"}
                valkey.suspend()  # which changes nothing
                valkey.resume()
            with redis.Redis.from_url(valkey.url) as client:
                assert client.ping()

    def test_one_that_has_ended_meanwhile_is_not_waited_for(self) -> None:
        with embedded.ValkeyProcess() as valkey:
            assert valkey.pid is not None
            with Watch([valkey.pid]) as server:
                os.kill(valkey.pid, signal.SIGKILL)
                server.wait()
            valkey.suspend()
            assert valkey.process.wait(20.0) == -signal.SIGKILL
            valkey.suspend()

    def test_a_stopped_server_can_be_ended(self) -> None:
        valkey = embedded.ValkeyProcess().start()
        valkey.suspend()
        assert valkey.pid is not None
        with Watch([valkey.pid]) as server:
            valkey.close()
            server.wait()

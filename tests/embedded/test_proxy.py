"""A proxy that fails on command."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import struct
import threading
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis

from fencing.embedded import places
from fencing.embedded.asking import until
from fencing.embedded.proxy import TcpProxy
from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fencing.embedded import ValkeyProcess


@pytest.fixture
def table(database: str) -> Iterator[psycopg.Connection]:
    """A direct connection to a database with an empty table t."""
    with psycopg.connect(plain_url(database), autocommit=True) as connection:
        connection.execute("CREATE TABLE t (n int)")
        yield connection


def rows(table: psycopg.Connection) -> list[int]:
    return [n for (n,) in table.execute("SELECT n FROM t ORDER BY n")]


class TestProxy:
    def test_a_swallowed_reply_belongs_to_an_executed_command(
        self, redis_url: str, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        with TcpProxy.to(redis_url) as proxy, redis.Redis.from_url(proxy.url, retry=None) as client:
            client.ping()
            proxy.swallow_reply(containing=b"INCR")
            client.ping()
            with pytest.raises(redis.ConnectionError):
                client.incr(redis_namespace)
            assert proxy.swallowed.is_set()
            assert redis_client.get(redis_namespace) == b"1"
            assert proxy.commands("INCRBY") == 1
            assert client.incr(redis_namespace) == 2
            assert proxy.commands("incrby") == 2

    def test_what_a_heartbeat_is_answered_is_not_the_reply(self) -> None:
        def frame(body: bytes) -> bytes:
            return struct.pack("!I", len(body)) + body

        alive = frame(struct.pack("!iqi", -2, 0, 0))
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = f"zookeeper://127.0.0.1:{listening.getsockname()[1]}/"
            with TcpProxy.to(address) as proxy, connected(proxy) as client:
                proxy.swallow_reply(b"wanted")
                client.sendall(frame(b"hello") + frame(struct.pack("!iI", 1, 4) + b"wanted"))
                server, _ = listening.accept()
                with server:
                    server.sendall(alive)
                    assert received(client, len(alive)) == alive
                    assert not proxy.swallowed.is_set()
                    server.sendall(frame(b"the reply"))
                    assert proxy.swallowed.wait(10)
                    assert ends(client)

    def test_refuse_and_accept(self, redis_url: str) -> None:
        with TcpProxy.to(redis_url) as proxy, redis.Redis.from_url(proxy.url, retry=None) as client:
            client.ping()
            proxy.refuse()
            with pytest.raises(redis.ConnectionError):
                client.ping()
            with pytest.raises(redis.ConnectionError, match="refused"):
                client.ping()
            proxy.accept()
            assert client.ping()

    @pytest.mark.parametrize("turns", range(5))
    def test_whoever_was_accepted_just_before_is_refused_as_well(
        self, redis_url: str, turns: int
    ) -> None:
        async def refuse_just_after(proxy: TcpProxy) -> socket.socket:
            client = connected(proxy)  # by the system, which the loop is told of in its next turn
            for _ in range(turns):
                await asyncio.sleep(0)
            await proxy._refuse()
            return client

        gc.collect()  # what others have left
        with warnings.catch_warnings(record=True) as left:
            warnings.simplefilter("always")
            with TcpProxy.to(redis_url) as proxy:
                with proxy._run(refuse_just_after(proxy)) as client:
                    assert ends(client)
                with pytest.raises(ConnectionRefusedError):
                    connected(proxy)
            gc.collect()
        assert [str(each.message) for each in left] == []

    def test_its_port_is_kept_while_it_refuses(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with TcpProxy.to(redis_url) as proxy:
            proxy.refuse()
            monkeypatch.setattr(places, "PORTS", [proxy.port])
            with pytest.raises(places.EmbeddedServerError, match="no free port"):
                places.free_port()
            proxy.accept()

    def test_held_replies_arrive_when_released(self, redis_url: str) -> None:
        with TcpProxy.to(redis_url) as proxy, connected(proxy) as client:
            assert answer(client, b"ECHO 1") == b"$1\r\n1\r\n"
            proxy.hold()
            client.sendall(b"ECHO 2\r\n")
            assert proxy.held.wait(10)
            assert hears_nothing(client)
            proxy.release()
            assert received(client, 7) == b"$1\r\n2\r\n"

    def test_messages_to_postgresql_are_counted(self, database: str) -> None:
        with (
            TcpProxy.to(database) as proxy,
            psycopg.connect(plain_url(proxy.url), autocommit=True) as connection,
        ):
            proxy.reset_counts()
            connection.execute("SELECT 1")
            connection.execute("SELECT %s", [1])
            assert (b"Q", b"SELECT 1") in proxy.requests or (b"P", b"SELECT 1") in proxy.requests
            assert proxy.commands("Q", "S") == 2
            proxy.cut()
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")


class TestRequestsThatComeLate:
    def test_a_commit_is_delivered_after_its_client_has_gone(
        self, database: str, table: psycopg.Connection
    ) -> None:
        with TcpProxy.to(database) as proxy:
            client = psycopg.connect(plain_url(proxy.url))
            client.execute("INSERT INTO t VALUES (1)")
            proxy.withhold_request(b"COMMIT", cut=False)
            committing = threading.Thread(target=lost, args=[client.commit])
            committing.start()
            assert proxy.withheld.wait(10)
            with socket.socket(fileno=os.dup(client.fileno())) as connection:
                connection.shutdown(socket.SHUT_RDWR)
            committing.join()
            assert rows(table) == []
            proxy.pass_withheld_on()
            until(lambda: rows(table) == [1], "the commit was not delivered")

    def test_a_client_that_waited_gets_its_answer(
        self, redis_url: str, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        with TcpProxy.to(redis_url) as proxy, redis.Redis.from_url(proxy.url, retry=None) as client:
            proxy.withhold_request(redis_namespace.encode(), cut=False)
            answers: list[object] = []
            asking = threading.Thread(target=lambda: answers.append(client.incr(redis_namespace)))
            asking.start()
            assert proxy.withheld.wait(10)
            assert redis_client.incr(redis_namespace) == 1
            proxy.pass_withheld_on()
            asking.join()
            assert answers == [2]

    def test_one_that_is_dropped_never_comes(
        self, database: str, table: psycopg.Connection
    ) -> None:
        with TcpProxy.to(database) as proxy:
            client = psycopg.connect(plain_url(proxy.url))
            client.execute("INSERT INTO t VALUES (1)")
            proxy.drop_request(b"COMMIT")
            with pytest.raises(psycopg.OperationalError):
                client.commit()
            assert proxy.dropped.is_set()
            client.close()
            # Which waits for the end of that session.
            table.execute("ALTER TABLE t ADD m int")
            assert rows(table) == []

    def test_a_prepared_statement_is_known_by_its_sql(
        self, database: str, table: psycopg.Connection
    ) -> None:
        with (
            TcpProxy.to(database) as proxy,
            psycopg.connect(plain_url(proxy.url), autocommit=True, prepare_threshold=0) as client,
        ):
            client.execute("INSERT INTO t VALUES (%s)", [1])
            proxy.drop_request(b"INSERT INTO t")
            with pytest.raises(psycopg.OperationalError):
                client.execute("INSERT INTO t VALUES (%s)", [2])
        assert rows(table) == [1]

    def test_what_is_looked_for_may_be_split_between_packets(
        self, redis_url: str, redis_namespace: str
    ) -> None:
        with (
            TcpProxy.to(redis_url) as proxy,
            socket.create_connection(("127.0.0.1", proxy.port)) as client,
        ):
            proxy.withhold_request(f"INCR {redis_namespace}".encode(), cut=False)
            client.sendall(b"PING\r\nIN")
            assert client.recv(100) == b"+PONG\r\n"
            client.sendall(f"CR {redis_namespace}\r\n".encode())
            assert proxy.withheld.wait(10)
            proxy.pass_withheld_on()
            assert client.recv(100) == b":1\r\n"

    @pytest.mark.parametrize("packets", [1, 2])
    def test_of_http(self, packets: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                bodies.append(json.loads(self.rfile.read(size)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        bodies: list[object] = []
        request = b'POST /v3/kv/txn HTTP/1.1\r\nContent-Length: 14\r\n\r\n{"late": true}'
        head = request.index(b"{") if packets == 2 else len(request)
        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            serving = threading.Thread(target=server.handle_request)
            serving.start()
            with (
                TcpProxy.to(f"etcd://127.0.0.1:{server.server_port}/") as proxy,
                socket.create_connection(("127.0.0.1", proxy.port)) as client,
            ):
                proxy.withhold_request(b"v3/kv/txn")
                client.sendall(request[:head])
                until(lambda: proxy.bytes_sent == head, "the first packet has not come")
                client.sendall(request[head:])
                assert proxy.withheld.wait(10)
                assert ends(client)
                assert bodies == []
                proxy.pass_withheld_on()
                serving.join()
        assert bodies == [{"late": True}]

    def test_a_message_without_its_sync_is_not_all(
        self, database: str, table: psycopg.Connection
    ) -> None:
        parse = message(b"P", b"\0INSERT INTO t VALUES (1)\0", struct.pack("!H", 0))
        bind = message(b"B", b"\0\0", struct.pack("!HHH", 0, 0, 0))
        execute = message(b"E", b"\0", struct.pack("!I", 0))
        with TcpProxy.to(database) as proxy:
            client = psycopg.connect(plain_url(proxy.url), autocommit=True)
            with socket.socket(fileno=os.dup(client.fileno())) as connection:
                connection.settimeout(10)
                proxy.withhold_request(b"INSERT INTO t")
                before = proxy.bytes_sent
                connection.sendall(parse + bind + execute)
                until(lambda: proxy.bytes_sent > before, "the first packet has not come")
                assert not proxy.withheld.is_set()
                connection.sendall(message(b"S"))
                assert proxy.withheld.wait(10)
                assert ends(connection)
                assert rows(table) == []
                proxy.pass_withheld_on()
                until(lambda: rows(table) == [1], "it was not delivered")
            client.close()


class TestSilence:
    def test_a_reply_may_be_lost_without_a_word(
        self, redis_url: str, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        incr = f"INCR {redis_namespace}".encode()
        with TcpProxy.to(redis_url) as proxy, connected(proxy) as client:
            proxy.swallow_reply(b"INCR", silently=True)
            client.sendall(incr + b"\r\n")
            assert proxy.swallowed.wait(10)
            assert hears_nothing(client)
            assert redis_client.get(redis_namespace) == b"1"
            with connected(proxy) as another:
                assert answer(another, incr) == b":2\r\n"

    def test_a_partition_tells_nobody_and_delivers_late(
        self, redis_url: str, redis_client: redis.Redis, redis_namespace: str
    ) -> None:
        incr = f"INCR {redis_namespace}\r\n".encode()
        with TcpProxy.to(redis_url) as proxy, connected(proxy) as client:
            assert answer(client, b"PING") == b"+PONG\r\n"
            proxy.partition()
            client.sendall(incr)
            with connected(proxy) as another:
                another.sendall(incr)
                assert hears_nothing(another)
            assert hears_nothing(client)
            assert redis_client.get(redis_namespace) is None
            proxy.heal()
            until(lambda: redis_client.get(redis_namespace) == b"2", "it was not delivered")
            assert received(client, 4) in (b":1\r\n", b":2\r\n")

    def test_a_partition_hides_the_end_of_a_server(self, own_valkey: ValkeyProcess) -> None:
        with TcpProxy.to(own_valkey.url) as proxy, connected(proxy) as client:
            assert answer(client, b"PING") == b"+PONG\r\n"
            proxy.partition()
            own_valkey.kill()
            with connected(proxy) as another:
                assert hears_nothing(client)
                assert hears_nothing(another)
                proxy.heal()
                assert ends(client)
                assert ends(another)


def test_what_is_delayed_keeps_its_order(redis_url: str) -> None:
    with (
        TcpProxy.to(redis_url) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as client,
    ):
        proxy.delay(0.1, requests=0.1)
        client.sendall(b"ECHO 1\r\n")
        until(lambda: proxy.bytes_sent > 0, "nothing was sent")
        proxy.delay(0)
        client.sendall(b"ECHO 2\r\n")
        said = b""
        while len(said) < len(b"$1\r\n1\r\n" * 2):
            said += client.recv(100)
        assert said == b"$1\r\n1\r\n$1\r\n2\r\n"


def test_without_counting_nothing_is_kept(redis_url: str) -> None:
    with (
        TcpProxy.to(redis_url, counting=False) as proxy,
        redis.Redis.from_url(proxy.url, retry=None) as client,
    ):
        client.ping()
        assert proxy.requests == []
        assert proxy.turns > 0


def lost(work: Callable[[], object]) -> None:
    with pytest.raises(psycopg.Error):
        work()


def message(kind: bytes, *parts: bytes) -> bytes:
    """One of PostgreSQL's."""
    body = b"".join(parts)
    return kind + struct.pack("!I", 4 + len(body)) + body


def connected(proxy: TcpProxy) -> socket.socket:
    """A client that waits for long."""
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)


def received(client: socket.socket, size: int) -> bytes:
    """So many bytes, in however many packets they come."""
    said = b""
    while len(said) < size and (chunk := client.recv(size - len(said))):
        said += chunk
    return said


def answer(client: socket.socket, command: bytes) -> bytes:
    """What a Redis says to one command: a line, and another if the first tells its length."""
    client.sendall(command + b"\r\n")
    said = b""
    while said.count(b"\r\n") < 1 + said.startswith(b"$"):
        said += received(client, 1)
    return said


def hears_nothing(client: socket.socket) -> bool:
    """Whether nothing comes for a while, not even an end."""
    before = client.gettimeout()
    client.settimeout(0.2)
    try:
        client.recv(1)
    except TimeoutError:
        return True
    finally:
        client.settimeout(before)
    return False


def ends(client: socket.socket) -> bool:
    """Wait until the connection of a client is cut."""
    try:
        return client.recv(1) == b""
    except ConnectionError:
        return True

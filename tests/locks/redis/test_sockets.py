"""A socket: what it does not take or give at once is waited for, until the end of the call."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
import redis

from fencing.clock import now
from fencing.locks.redis.bounded import _watch, bounded
from fencing.locks.redis.resp import Answers

if TYPE_CHECKING:
    from collections.abc import Iterator

BIG = b"0123456789" * 1_000_000


@pytest.fixture
def ends() -> Iterator[tuple[Any, socket.socket]]:
    """A connection, and the other end of its socket."""
    ours, theirs = socket.socketpair()
    connection = bounded(redis.Connection)(socket_timeout=None)
    connection._sock, connection._watch, connection._is_plain = ours, _watch(ours), True
    connection._answers = Answers(redis.ResponseError)
    with theirs:
        yield connection, theirs
        connection.disconnect()


def test_a_request_that_is_too_big_for_the_system_is_sent_wholly(ends):
    connection, theirs = ends
    came: list[bytes] = []

    def read() -> None:
        while sum(map(len, came)) < 2 * len(BIG):
            came.append(theirs.recv(1 << 20))

    reader = threading.Thread(target=read)
    reader.start()
    connection.until = now() + 60
    connection.send(BIG)
    connection.send(BIG)
    reader.join()
    assert b"".join(came) == BIG * 2


def test_a_request_that_nobody_takes_ends_in_time(ends):
    connection, _ = ends
    connection.until = now() + 0.05
    with pytest.raises(redis.TimeoutError):
        connection.send(BIG)


def test_an_answer_that_does_not_come_ends_in_time(ends):
    connection, _ = ends
    connection.until = now() + 0.05
    connection.send(b"request")
    with pytest.raises(redis.TimeoutError):
        connection.answer()


def test_a_socket_s_own_time_out_ends_it_too(ends):
    connection, _ = ends
    connection.socket_timeout = 0.05
    connection.send(b"request")
    with pytest.raises(redis.TimeoutError):
        connection.answer()


def test_an_answer_in_pieces_is_put_together(ends):
    connection, theirs = ends
    connection.until = now() + 60
    connection.send(b"request")
    assert theirs.recv(7) == b"request"
    theirs.sendall(b"*2\r\n$3\r\non")
    rest = threading.Timer(0.02, theirs.sendall, [b"e\r\n:2\r\n"])
    rest.start()
    assert connection.answer() == [b"one", 2]
    rest.join()


def test_the_connection_s_end_is_told(ends):
    connection, theirs = ends
    connection.until = now() + 60
    connection.send(b"request")
    theirs.close()
    with pytest.raises(redis.ConnectionError):
        connection.answer()

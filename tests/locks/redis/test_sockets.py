"""A socket of which each operation is over by a moment, on pairs of real ones."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Any

import pytest

from fencing.locks.redis import sockets
from fencing.locks.redis.sockets import READ_BYTES, bounded_socket

WAYS = ["polled", "timed"]
LARGE = bytes(range(256)) * 40_000
"""More than a socket takes at once."""


@pytest.fixture
def pair():
    near, far = socket.socketpair()
    with near, far:
        yield near, far


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    if request.param == "timed":  # as where there is no poll
        monkeypatch.delattr(sockets.select, "poll")
    return request.param


def test_each_is_of_its_kind(pair, way):
    assert type(bounded_socket(pair[0])).__name__ == f"_{way.title()}Socket"


def test_what_is_sent_comes(pair, way):
    bounded_socket(pair[0]).send(b"some words", 5)
    assert pair[1].recv(100) == b"some words"


def test_what_comes_is_received(pair, way):
    pair[1].sendall(b"some words")
    assert bounded_socket(pair[0]).receive(5) == b"some words"


def test_there_need_be_no_limit(pair, way):
    bounded = bounded_socket(pair[0])
    bounded.send(b"some words", None)
    pair[1].sendall(b"others")
    assert bounded.receive(None) == b"others"


def test_more_than_there_is_room_for_is_sent_as_there_is(pair, way):
    come = bytearray()

    def read() -> None:
        while data := pair[1].recv(READ_BYTES):
            come.extend(data)

    reader = threading.Thread(target=read)
    reader.start()
    bounded_socket(pair[0]).send(LARGE, 60)
    pair[0].shutdown(socket.SHUT_WR)
    reader.join()
    assert come == LARGE


def test_what_there_is_no_room_for_at_all_is_sent_when_there_is(pair, way):
    pair[0].settimeout(0)
    filled = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            filled += pair[0].send(LARGE)
    pair[0].settimeout(None)
    come = bytearray()

    def read() -> None:
        while data := pair[1].recv(READ_BYTES):
            come.extend(data)

    bounded = bounded_socket(pair[0])
    with pytest.raises((TimeoutError, BlockingIOError)):
        bounded.send(b"too early", 0.0)
    reader = threading.Thread(target=read)
    reader.start()
    bounded.send(b"the end", 60)
    pair[0].shutdown(socket.SHUT_WR)
    reader.join()
    assert come[filled:] == b"the end"


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_sending_is_given_up_when_the_time_is_up(pair, way, seconds):
    bounded = bounded_socket(pair[0])
    # A socket with no time at all does not block, as Python has it; both are errors of the system.
    with pytest.raises((TimeoutError, BlockingIOError)):
        bounded.send(LARGE, seconds)


def test_waiting_is_given_up_when_the_time_is_up(pair, way):
    with pytest.raises(TimeoutError):
        bounded_socket(pair[0]).receive(0.01)


def test_the_end_of_the_connection_is_received(pair, way):
    pair[1].close()
    assert bounded_socket(pair[0]).receive(5) == b""


def test_it_is_quiet_until_something_comes(pair):
    bounded = bounded_socket(pair[0])
    assert bounded.is_quiet()
    pair[1].sendall(b"!")
    assert not bounded.is_quiet()


def test_the_end_of_the_connection_is_something(pair):
    bounded = bounded_socket(pair[0])
    pair[1].close()
    assert not bounded.is_quiet()


def test_whether_it_is_quiet_is_not_known_without_poll(pair, monkeypatch):
    monkeypatch.delattr(sockets.select, "poll")
    assert not bounded_socket(pair[0]).is_quiet()


def test_a_wake_up_for_nothing_is_passed_over(pair):
    class Once:
        def __init__(self) -> None:
            self.flags: list[int] = []

        def recv(self, size: int, flags: int) -> bytes:
            self.flags.append(flags)
            if len(self.flags) == 1:
                raise BlockingIOError
            return pair[0].recv(size, flags)

    bounded: Any = bounded_socket(pair[0])
    bounded._socket = Once()
    pair[1].sendall(b"!")
    assert bounded.receive(20) == b"!"

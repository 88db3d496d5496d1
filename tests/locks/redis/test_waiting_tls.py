"""Waiting over TLS: who waits alone reads for himself there, too, and others may end that."""

from __future__ import annotations

import contextlib
import socket
import ssl
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.proxy import TcpProxy
from fencing.locks.redis import reading
from fencing.locks.redis.reading import Wire
from tests.contract.facade import in_thread
from tests.locks.redis.waiting import begun, service, until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from tests.locks.redis.waiting import Server

trustme = pytest.importorskip("trustme", reason="makes the certificates")


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """A server's, and that of a client who trusts it."""
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


@pytest.fixture
def encrypted(
    redis_url: str, contexts: tuple[ssl.SSLContext, ssl.SSLContext]
) -> Iterator[TcpProxy]:
    with TcpProxy.to(redis_url, contexts[0]) as proxy:
        yield proxy


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestWaiting:
    async def test_is_told(
        self, kind: str, encrypted: TcpProxy, server: Server, others: Any
    ) -> None:
        async with service(kind, encrypted.url, server.namespace, ssl_cert_reqs="none") as locks:
            for _ in range(3):
                held = await others.acquire("r", ttl=30)
                task = begun(locks)
                await server.queued()
                await held.release()
                await (await task).release()
        assert server.leftovers() == []

    async def test_goes_on_after_the_service_was_closed(
        self, kind: str, encrypted: TcpProxy, server: Server, others: Any
    ) -> None:
        async with service(kind, encrypted.url, server.namespace, ssl_cert_reqs="none") as locks:
            held = await others.acquire("r", ttl=30)
            task = begun(locks)
            await server.queued()
            if kind == "sync":
                subscriber = locks.locks._redis._waiters.subscribers[""]
                await until(lambda: subscriber._reader not in (None, subscriber))
                await in_thread(locks.locks.close)
            else:
                await locks.aclose()
            await held.release()
            await (await task).release()
        assert server.leftovers() == []


@contextlib.contextmanager
def ends(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> Iterator[tuple[Any, Any]]:
    """Both ends of a connection that speaks TLS."""
    near, far = socket.socketpair()
    with near, far:
        accepted: list[ssl.SSLSocket] = []

        def accept() -> None:
            accepted.append(contexts[0].wrap_socket(far, server_side=True))

        accepting = threading.Thread(target=accept)
        accepting.start()
        with contexts[1].wrap_socket(near, server_hostname="127.0.0.1") as ours:
            accepting.join()
            with accepted[0] as theirs:
                yield ours, theirs


class TestWire:
    def test_what_was_read_and_not_taken_is_not_waited_for(
        self, contexts: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with ends(contexts) as (ours, theirs):
            wire = Wire(ours)
            wait_for_it = reading.readable

            def readable(*what: Any) -> None:
                assert not ours.pending()
                wait_for_it(*what)

            monkeypatch.setattr(reading, "readable", readable)
            theirs.sendall(b"x" * (reading.CHUNK + 1) + b"\r\n")
            while not wire.lines.come:
                wire.wait(20)
                assert wire.receive()

    def test_another_may_end_it_before_any_line_of_waiting(self, contexts: Any) -> None:
        files = {ssl.__file__, reading.__file__}
        number, has_ended = 0, True
        while has_ended:
            number += 1
            with ends(contexts) as (ours, theirs):
                wire = Wire(ours)
                theirs.sendall(b"something\r\n")  # so that it is not waited for in any case
                has_ended = end_before_line(number, files, wire)
        assert number > 1

    def test_nothing_is_read_without_tls_after_its_end(self, contexts: Any) -> None:
        with ends(contexts) as (ours, theirs):
            wire = Wire(ours)
            theirs.sendall(b"something\r\n")
            wire.wait(20)
            wire.shut_down()
            with contextlib.suppress(OSError):
                wire.receive()
            assert list(wire.lines.come) in ([], [b"something"])
            assert not wire.lines._rest


def end_before_line(number: int, files: set[str], wire: Wire) -> bool:
    """Wait, and end it before the n-th line of some files; return whether there were so many."""
    lines = 0

    def trace(frame: FrameType, happened: str, _: object) -> object:
        nonlocal lines
        if frame.f_code.co_filename not in files:
            return None
        if happened == "line":
            lines += 1
            if lines == number:
                wire.shut_down()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]  # it returns itself, for which there is no type
    try:
        wire.wait(20)
    finally:
        sys.settrace(before)
    return lines >= number

"""Looks at the servers of a ZooKeeper; each is asked over connections of its own.

kazoo tells neither which server it talks to nor what that has made of the session's timeout, so
both are asked here: by ZooKeeper's four-letter words, and by a session that is begun and ended.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.hosts import collect_hosts
from kazoo.protocol.serialization import Connect

from fencing.clock import now
from fencing.errors import LockServiceError
from fencing.locks.zookeeper.trouble import UNREACHABLE, trouble_of
from fencing.locks.zookeeper.verifying import Server, judged, members_in

if TYPE_CHECKING:
    from fencing.locks.zookeeper.session import Session
    from fencing.locks.zookeeper.verifying import Asked
    from fencing.verification import ServiceVerification

__all__ = ["verify"]

SERVER_SECONDS = 2.0
"""How long a server may take for each answer, in seconds."""

SESSION_SECONDS = 5.0
"""How long a session may take to begin, in seconds."""

CONFIG = "/zookeeper/config"

_CLOSE = struct.pack(">iii", 8, 0, -11)
"""The request to end a session: its length, its number, its kind."""


def verify(session: Session, asked: Asked) -> ServiceVerification:
    """Verify the servers that a service's session may be with.

    Raises:
        LockServiceError: None of them could be reached.
    """
    places, _ = collect_hosts(session.hosts)
    found: dict[str, Server] = {}
    with_tls = bool(session.options.get("use_ssl"))
    for host, port in places:
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        # With TLS only kazoo knows how to connect.
        found[place] = Server() if with_tls else _server(host, port, asked.session_timeout)
    if all(server.failure for server in found.values()):
        told = "; ".join(f"{place}: {server.failure}" for place, server in found.items())
        raise LockServiceError(f"lock service: {UNREACHABLE} ({told})")
    members, chroot_is_there = _told_in_session(session, asked.chroot)
    return judged(found, asked, members=members, chroot_is_there=chroot_is_there)


def _server(host: str, port: int, timeout: float) -> Server:
    try:
        srvr = _word(host, port, b"srvr")
        return Server("", srvr, _word(host, port, b"conf"), _negotiated(host, port, timeout))
    except OSError as error:
        return Server(failure=str(error) or type(error).__name__)


def _word(host: str, port: int, word: bytes) -> str:
    with socket.create_connection((host, port), timeout=SERVER_SECONDS) as connection:
        connection.sendall(word)
        said = b"".join(iter(lambda: connection.recv(4096), b"")).decode(errors="replace")
    # "conf is not executed because it is not in the whitelist."
    return "" if "not in the whitelist" in said or "not currently serving" in said else said


def _negotiated(host: str, port: int, timeout: float) -> float:
    """What the server makes of a session's timeout, in seconds; 0: it lets nobody in."""
    request = Connect(0, 0, int(timeout * 1000), 0, b"\0" * 16, False).serialize()  # noqa: FBT003 - kazoo's
    with socket.create_connection((host, port), timeout=SERVER_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        with connection.makefile("rb") as answers:
            head = answers.read(4)
            answer = answers.read(struct.unpack(">i", head)[0]) if len(head) == 4 else b""  # noqa: PLR2004 - of the length
        if not answer:
            return 0.0
        connection.sendall(_CLOSE)
        made, _ = Connect.deserialize(answer, 0)
    return float(made.time_out) / 1000


def _told_in_session(session: Session, chroot: str) -> tuple[int, bool | None]:
    """How many servers vote, and whether the chroot is there; 0 and ``None``: not known."""
    options = {**session.options, "timeout": max(session.options["timeout"], SESSION_SECONDS)}
    client: Any = KazooClient(session.hosts.partition("/")[0], **options)
    try:
        client.start(timeout=SESSION_SECONDS)
        members = 0
        with contextlib.suppress(KazooException):  # a user may not be allowed to read it
            members = members_in(client.get(CONFIG)[0].decode(errors="replace"))
        return members, client.exists(chroot) is not None
    except client.handler.timeout_exception:
        return 0, None
    except KazooException as error:
        raise LockServiceError(f"lock service: {trouble_of(error, at=now()).help}") from error
    finally:
        ending = threading.Thread(target=_end, args=(client,), daemon=True)
        ending.start()
        ending.join(SERVER_SECONDS)


def _end(client: Any) -> None:  # noqa: ANN401 - kazoo has no types
    with contextlib.suppress(Exception):
        client.stop()
        client.close()

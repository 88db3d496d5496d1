"""One ZooKeeper."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fencing.embedded.zookeeper import ZooKeeperProcess
from fencing.locks.zookeeper.service import SESSION_SECONDS
from fencing.torture.faults.kinds import MissedError
from fencing.torture.services.base import lock_fault
from fencing.torture.services.single import SingleServer

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from random import Random

    from fencing.torture.faults.kinds import FaultKind
    from fencing.torture.stage import Stage

__all__ = ["ZooKeeperServers", "end_session", "sessions"]

_SETTINGS = "4lw.commands.whitelist=ruok,srvr,cons\n"
_SESSION = re.compile(rb"sid=0x([0-9a-f]+)")
_SECRET = 0xB3415C00
"""What ZooKeeper mixes into a session's password; it is in its source."""
_SECONDS = 2.0
"""How long a session may take to be taken over, in seconds."""


class ZooKeeperServers(SingleServer):
    """One ZooKeeper that keeps what it has acknowledged."""

    name = "zookeeper"
    # So long lives the session of a waiter that has died or stands still.
    lingers = SESSION_SECONDS

    server: ZooKeeperProcess

    def __init__(self) -> None:
        self.server = ZooKeeperProcess(settings=_SETTINGS)

    def faults(self) -> Sequence[FaultKind]:
        """What can be done to it."""
        return (
            lock_fault("ZooKeeper killed", self._kill),
            lock_fault("ZooKeeper stopped", self._stop),
            lock_fault("session ended", self._end_session, weight=2.0),
            lock_fault("ZooKeeper restored", self._restore, weight=0.5, breaks_order=True),
            lock_fault("ZooKeeper emptied", self._forget, weight=0.5, breaks_order=True),
        )

    def _end_session(self, _stage: Stage, chance: Random) -> Generator[float, None, None]:
        """A worker's session ends, as when it was not heard of for too long."""
        found = sessions(self.server)
        if not found:
            raise MissedError
        end_session(self.server, chance.choice(found))
        yield 0.0


def sessions(server: ZooKeeperProcess) -> list[int]:
    """The numbers of the sessions that are connected to a server."""
    return [int(number, 16) for number in _SESSION.findall(server.says(b"cons"))]


def end_session(server: ZooKeeperProcess, number: int) -> None:
    """Take over a session, whoever's it is, and end it."""
    from kazoo.client import KazooClient  # noqa: PLC0415 - of no other service's concern
    from kazoo.handlers.threading import KazooTimeoutError  # noqa: PLC0415 - as above

    client = KazooClient(
        f"127.0.0.1:{server.port}", timeout=_SECONDS, client_id=(number, _password_of(number))
    )
    try:
        client.start(_SECONDS)
    except KazooTimeoutError as error:
        raise MissedError from error
    finally:
        client.stop()
        client.close()


def _password_of(session: int) -> bytes:
    """As ZooKeeper draws it, by Java's generator, from the session's number alone."""
    state = (session ^ _SECRET ^ 0x5DEECE66D) & (1 << 48) - 1
    password = b""
    for _ in range(4):
        state = (state * 0x5DEECE66D + 0xB) & (1 << 48) - 1
        password += (state >> 16).to_bytes(4, "little")
    return password

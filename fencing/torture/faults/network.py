"""What a network does to what workers and servers say to each other: see :class:`Ways`.

Each strikes one worker that goes through a proxy: on its way to the database, or to the lock
service.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from fencing.clock import now
from fencing.torture.faults.missing import MissedError

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Generator, Iterator
    from random import Random

    from fencing.embedded.proxy import TcpProxy
    from fencing.torture.faults.kinds import Steps
    from fencing.torture.stage import Stage

__all__ = [
    "ADMISSION",
    "COMMIT",
    "cut",
    "delay",
    "hold_admission",
    "hold_commit",
    "lose_admissions_answer",
    "lose_commit",
    "lose_commits_answer",
    "lose_lock_services_answer",
    "part",
    "refuse",
    "silence",
]

COMMIT, ADMISSION = b"COMMIT", b"fencing.admit("
"""What is found in a packet with one of these."""

_LOOK = 0.01
_PATIENCE = 6.0
"""How long a fault waits for its packet to come, in leases."""


def hold_commit(stage: Stage, chance: Random) -> Steps:
    """Hold a COMMIT, and deliver it late, perhaps when its worker has long given up."""
    yield from _hold(stage, chance, COMMIT)


def hold_admission(stage: Stage, chance: Random) -> Steps:
    """Hold an admission, and deliver it late."""
    yield from _hold(stage, chance, ADMISSION)


def _hold(stage: Stage, chance: Random, packet: bytes) -> Steps:
    number, proxy = _chosen(stage.ways.databases, chance)
    yield f"w{number}"
    with _disarmed(proxy):
        proxy.withhold_request(packet, cut=chance.random() < 0.5)  # noqa: PLR2004 - one of two
        try:
            if (yield from _came(stage, proxy.withheld)):
                yield stage.settings.ttl * chance.uniform(0.2, 4.0)
        finally:
            proxy.disarm()
            proxy.pass_withheld_on()


def lose_commit(stage: Stage, chance: Random) -> Steps:
    """Lose a COMMIT with its connection: the server never sees it."""
    number, proxy = _chosen(stage.ways.databases, chance)
    yield f"w{number}"
    with _disarmed(proxy):
        proxy.drop_request(COMMIT)
        yield from _came(stage, proxy.dropped)


def lose_commits_answer(stage: Stage, chance: Random) -> Steps:
    """Lose the answer to a COMMIT: it is done, and nobody is told."""
    yield from _lose_answer(stage, chance, stage.ways.databases, COMMIT)


def lose_admissions_answer(stage: Stage, chance: Random) -> Steps:
    """Lose the answer to an admission."""
    yield from _lose_answer(stage, chance, stage.ways.databases, ADMISSION)


def lose_lock_services_answer(stage: Stage, chance: Random) -> Steps:
    """Lose the next answer of a lock service that is reached at one address, whatever to."""
    yield from _lose_answer(stage, chance, stage.ways.services, b"")


def _lose_answer(
    stage: Stage, chance: Random, proxies: dict[int, TcpProxy], packet: bytes
) -> Steps:
    number, proxy = _chosen(proxies, chance)
    yield f"w{number}"
    silently = chance.random() < 0.3  # noqa: PLR2004 - now and then
    with _disarmed(proxy):
        proxy.swallow_reply(packet, silently=silently)
        if (yield from _came(stage, proxy.swallowed)) and silently:
            # Who waits learns of it by what his system finds out in the end.
            try:
                yield stage.settings.ttl * chance.uniform(0.2, 3.0)
            finally:
                proxy.cut()


def cut(stage: Stage, chance: Random) -> Steps:
    """Close all connections of a worker to a server."""
    number, proxy = _anywhere(stage, chance)
    yield f"w{number}"
    proxy.cut()


def silence(stage: Stage, chance: Random) -> Steps:
    """Let nothing pass on the connections there are, which end much later."""
    number, proxy = _anywhere(stage, chance)
    yield f"w{number}"
    proxy.silence()
    try:
        yield stage.settings.ttl * chance.uniform(0.2, 4.0)
    finally:
        proxy.cut()


def part(stage: Stage, chance: Random) -> Steps:
    """Part a worker from a server; what is said meanwhile arrives afterwards."""
    number, proxy = _anywhere(stage, chance)
    yield from _lasting(stage, chance, number, proxy.partition, proxy.heal)


def delay(stage: Stage, chance: Random) -> Steps:
    """Make a worker's way slow, in either direction or both."""
    number, proxy = _anywhere(stage, chance)
    ttl = stage.settings.ttl
    there, back = (ttl * chance.choice((0.0, 0.02, chance.uniform(0.0, 0.5))) for _ in "ab")

    def begin() -> None:
        proxy.delay(back, requests=there)

    yield from _lasting(stage, chance, number, begin, lambda: proxy.delay(0.0))


def refuse(stage: Stage, chance: Random) -> Steps:
    """Close all connections of a worker to a server, and refuse new ones."""
    number, proxy = _anywhere(stage, chance)
    yield from _lasting(stage, chance, number, proxy.refuse, proxy.accept)


def _lasting(
    stage: Stage,
    chance: Random,
    number: int,
    begin: Callable[[], None],
    end: Callable[[], None],
) -> Steps:
    yield f"w{number}"
    begin()
    try:
        yield stage.settings.ttl * chance.uniform(0.2, 4.0)
    finally:
        end()


def _chosen(proxies: dict[int, TcpProxy], chance: Random) -> tuple[int, TcpProxy]:
    if not proxies:
        raise MissedError
    number = chance.choice(sorted(proxies))
    return number, proxies[number]


def _anywhere(stage: Stage, chance: Random) -> tuple[int, TcpProxy]:
    ways = [proxies for proxies in (stage.ways.databases, stage.ways.services) if proxies]
    if not ways:
        raise MissedError
    return _chosen(chance.choice(ways), chance)


def _came(stage: Stage, event: threading.Event) -> Generator[float, None, bool]:
    """Wait for a packet; whether it came."""
    deadline = now() + stage.settings.ttl * _PATIENCE
    while not event.is_set():
        if now() > deadline:
            return False
        yield _LOOK
    return True


@contextmanager
def _disarmed(proxy: TcpProxy) -> Iterator[None]:
    try:
        yield
    finally:
        proxy.disarm()

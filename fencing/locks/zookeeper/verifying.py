"""What weakens the ZooKeeper of a lock service: the facts that its servers tell, judged.

Without I/O and without a clock. A guarded table is safe whatever ZooKeeper loses; what is lost here
is that the lock can be had, or that it excludes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencing.verification import Finding, ServiceVerification, by_gravity

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Asked", "Server", "judged", "members_in"]

OLDEST = (3, 5, 3)
"""The oldest ZooKeeper that has containers."""

_VERSION = re.compile(r"Zookeeper version: (\d+(?:\.\d+)*)")
_MODE = re.compile(r"^Mode: (.+)$", re.MULTILINE)
_SETTING = re.compile(r"^(\w+)=(\d+)$", re.MULTILINE)
_MEMBER = re.compile(r"^server\.\d+=.*$", re.MULTILINE)


def members_in(config: str) -> int:
    """How many servers vote, as the node ``/zookeeper/config`` tells; 0: it does not."""
    return sum(":observer" not in member for member in _MEMBER.findall(config))


@dataclass(frozen=True, slots=True)
class Asked:
    """What the service asks for.

    Attributes:
        session_timeout: In seconds.
        user: Whether it has a user.
        namespace: What its nodes are under.
        chroot: The node under which that is.
    """

    session_timeout: float
    user: bool
    namespace: str
    chroot: str


@dataclass(frozen=True, slots=True)
class Server:
    """What one server has told.

    Attributes:
        failure: Why it could not be reached; empty: it could.
        srvr: Its answer to that four-letter word; empty: it does not answer to it.
        conf: The same.
        session_timeout: What it makes of the timeout that the service asks for, in seconds; 0: it
            lets nobody in; ``None``: it was not asked.
    """

    failure: str = ""
    srvr: str = ""
    conf: str = ""
    session_timeout: float | None = None

    @property
    def closed(self) -> bool:
        """Whether it lets nobody in."""
        return bool(self.failure) or self.session_timeout == 0.0

    @property
    def version(self) -> str:
        """Its version; empty: unknown."""
        found = _VERSION.search(self.srvr)
        return found[1] if found else ""

    @property
    def mode(self) -> str:
        """``standalone``, ``leader``, ``follower``, ``observer``, ``read-only``; empty: unknown."""
        found = _MODE.search(self.srvr)
        return found[1] if found else ""

    @property
    def settings(self) -> dict[str, int]:
        """Its settings that are numbers, where it tells them."""
        return {name: int(value) for name, value in _SETTING.findall(self.conf)}


def judged(
    servers: Mapping[str, Server], asked: Asked, *, members: int, chroot_is_there: bool | None
) -> ServiceVerification:
    """Judge what the servers of an address have told.

    Args:
        servers: By their places; one of them at least could be reached.
        asked: What the service asks for.
        members: How many vote; 0: it is not known.
        chroot_is_there: Whether it is; ``None``: nobody could be asked.
    """
    there = {place: server for place, server in servers.items() if not server.failure}
    versions = sorted({server.version for server in there.values()} - {""})
    findings = [*_ensemble(there, members), *_access(asked, chroot_is_there=chroot_is_there)]
    all_closed = all(server.closed for server in servers.values())
    for place, server in servers.items():
        findings += _server(place, server, asked, alone=all_closed)
    return ServiceVerification(
        service=f"zookeeper {', '.join(versions)}".rstrip(),
        nodes=tuple(there),
        findings=by_gravity(findings),
    )


def _ensemble(there: Mapping[str, Server], members: int) -> Iterator[Finding]:
    size = members or int(any(server.mode == "standalone" for server in there.values()))
    if size and size < 3:  # noqa: PLR2004 - of which one may fail
        yield Finding(
            "warning", "members-few",
            f"the ensemble has {size} voting server{'s' if size > 1 else ''}, of which none may "
            "fail: without it nobody acquires, and if its disk is lost, locks that are held can be "
            "had by others, and tokens start again (a guard then heals them)",
            "run 3 servers, on machines of their own",
        )  # fmt: skip
    elif size and size % 2 == 0:
        yield Finding(
            "info", "members-even",
            f"the ensemble has {size} voting servers: no more of them may fail than of {size - 1}",
            "run an odd number of servers",
        )  # fmt: skip
    if size > len(there) == 1:
        yield Finding(
            "info", "endpoint-single",
            f"one server of an ensemble of {size} was reached at the address: where that is all it "
            "names, the service fails with it",
            "name all servers in the address",
        )  # fmt: skip


def _access(asked: Asked, *, chroot_is_there: bool | None) -> Iterator[Finding]:
    if chroot_is_there is False:
        yield Finding(
            "error", "chroot-missing",
            f"there is no node {asked.chroot}, the chroot of the address: no lock can be acquired",
            f"create {asked.chroot}", subject=asked.chroot,
        )  # fmt: skip
    if not asked.user:
        yield Finding(
            "info", "auth-off",
            f"the nodes of the namespace {asked.namespace!r} are for everybody: whoever reaches "
            "ZooKeeper can take locks, and delete others'",
            "let nobody else reach it, or give the address a user and a password",
        )  # fmt: skip


def _server(place: str, server: Server, asked: Asked, *, alone: bool) -> Iterator[Finding]:
    if server.failure:
        yield Finding(
            "warning", "node-unreachable", f"{place} could not be reached ({server.failure})",
            "start it, or take it out of the address", subject=place,
        )  # fmt: skip
        return
    numbers = tuple(map(int, server.version.split("."))) if server.version else OLDEST
    if numbers < OLDEST:
        yield Finding(
            "error", "version-old",
            f"{place}: ZooKeeper {server.version} is older than {'.'.join(map(str, OLDEST))}, "
            "which has the containers that the service needs",
            "upgrade it", subject=place,
        )  # fmt: skip
    if server.closed:
        yield Finding(
            "error" if alone else "warning", "node-closed",
            f"{place} lets nobody in: it has no quorum, or too many connections"
            + ("; nor does another, so no lock can be acquired" if alone else ""),
            "see that most of the ensemble's servers run and reach each other", subject=place,
        )  # fmt: skip
        return
    if server.session_timeout is not None and round(
        1000 * (server.session_timeout - asked.session_timeout)
    ):
        longer = server.session_timeout > asked.session_timeout
        bound = "minSessionTimeout" if longer else "maxSessionTimeout"
        known = f" ({bound}={server.settings[bound]})" if bound in server.settings else ""
        yield Finding(
            "warning" if longer else "info", "session-bounded",
            f"{place} makes sessions of {server.session_timeout:g} s, where the service asks for "
            f"{asked.session_timeout:g} s{known}: "
            + (
                "a waiter that has died keeps those behind it waiting for longer"
                if longer
                else "a waiter that is stopped loses its place sooner"
            ),
            f"set {bound} or tickTime, or ask for another session_timeout", subject=bound,
        )  # fmt: skip
    if not server.srvr:
        yield Finding(
            "info", "not-looked-at",
            f"{place} does not answer to srvr, or only by TLS, so its version is not known",
            "4lw.commands.whitelist=srvr, or look at its configuration", subject="srvr",
        )  # fmt: skip

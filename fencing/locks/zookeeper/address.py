"""The address of an ensemble, as one line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from urllib.parse import unquote

from fencing.service import FOR_ADDRESS

__all__ = ["Address", "check_hosts", "chroot_in"]

_SCHEMES = ("zookeeper", "zk")

_SERVER = re.compile(
    r"(?:\[(?P<ipv6>[^\[\]]+)\]|[^\s:\[\]@/?#\\]+)(?::(?P<port>[0-9]{1,5}))?", re.ASCII
)

MAX_PORT = 65535


@dataclass(frozen=True, slots=True)
class Address:
    """Where an ensemble is, and who we are to it.

    Attributes:
        hosts: As kazoo has them: ``host:port,host:port/chroot``.
        user: The user of the scheme ``digest``, if any.
        password: His password.
    """

    hosts: str
    user: str | None
    password: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read ``zookeeper://[user:password@]host:port,host:port/[chroot]``.

        Raises:
            TypeError: It is not a ``str``.
            ValueError: It is no such address. The message holds no password.
        """
        if not isinstance(url, str):
            raise TypeError(f"the address of ZooKeeper must be a str, not {type(url).__name__}")
        scheme, colon, rest = url.partition("://")
        if not colon or scheme.lower() not in _SCHEMES:
            raise ValueError("the address of ZooKeeper begins with zookeeper:// or zk://")
        if "?" in rest or "#" in rest:
            raise ValueError(
                "the address of ZooKeeper has no ? or # (write %3F, %23); settings are arguments"
            )
        places, slash, chroot = rest.rpartition("@")[2].partition("/")
        servers = places.split(",")
        if not all(servers) or any(server.startswith(":") for server in servers):
            raise ValueError(
                "the address of ZooKeeper names its servers: zookeeper://host:2181,host:2181/"
            )
        user = password = None
        if "@" in rest:
            name, colon, secret = rest.rpartition("@")[0].partition(":")
            if not name or not colon:
                raise ValueError(
                    "a user in the address of ZooKeeper has a password: user:password@"
                )
            user, password = unquote(name), unquote(secret)
        path = chroot.rstrip("/")
        hosts = places + (f"{slash}{unquote(path)}" if path else "")
        return cls(check_hosts(hosts), user, password)


def check_hosts(hosts: str) -> str:
    """Return ``host:port,host:port/chroot`` if kazoo can connect there.

    Raises:
        ValueError: It cannot. The message holds none of it: a password may have got there.
    """
    if hosts.partition("://")[0].lower() in _SCHEMES:
        raise ValueError(
            f"hosts are zk1:2181,zk2:2181, not an address such as zookeeper://zk1; {FOR_ADDRESS}"
        )
    places, _, chroot = hosts.partition("/")
    for number, server in enumerate(places.split(","), start=1):
        if not _is_server(server.strip()):
            raise ValueError(
                f"server {number} in the address of ZooKeeper is no host:port: a name, an IPv4 "
                "address or an IPv6 one in brackets, and a port from 1 to 65535"
            )
    parts = chroot.rstrip("/").split("/") if chroot.strip("/") else []
    if "//" in hosts or any(part in {"", ".", ".."} or not part.isprintable() for part in parts):
        raise ValueError(
            "the chroot in the address of ZooKeeper is a path of names such as /apps/bank, without "
            "//, . or .. in it"
        )
    return hosts


def chroot_in(hosts: str) -> str:
    """The node under which all are that ``host:port,host:port/chroot`` leads to."""
    return "/" + hosts.partition("/")[2].strip("/")


def _is_server(server: str) -> bool:
    found = _SERVER.fullmatch(server)
    if found is None:
        return False
    if found["ipv6"] is not None:
        try:
            IPv6Address(found["ipv6"])
        except ValueError:
            return False
    port = found["port"]
    return port is None or 1 <= int(port) <= MAX_PORT

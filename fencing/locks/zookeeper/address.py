"""The address of an ensemble, as one line."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote

__all__ = ["Address"]

_SCHEMES = ("zookeeper", "zk")


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
        for server in servers:
            port = "" if server.endswith("]") else server.rpartition(":")[1:][1]
            if ":" in server and not server.endswith("]") and not port.isdecimal():
                raise ValueError(f"{server!r} in the address of ZooKeeper has no number for a port")
        user = password = None
        if "@" in rest:
            name, colon, secret = rest.rpartition("@")[0].partition(":")
            if not name or not colon:
                raise ValueError(
                    "a user in the address of ZooKeeper has a password: user:password@"
                )
            user, password = unquote(name), unquote(secret)
        path = chroot.rstrip("/")
        return cls(places + (f"{slash}{unquote(path)}" if path else ""), user, password)

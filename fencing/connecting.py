"""A lock service from an address, so that a line of configuration says who grants leases."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fencing.service import AsyncLockService, LockService

__all__ = ["connect", "connect_async"]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of lock service.

    Attributes:
        home: The module that has it.
        name: Its class there; the asyncio twin has the same name behind ``Async``.
    """

    home: str
    name: str

    def find(self, *, twin: bool) -> Any:  # noqa: ANN401 - a class with from_url()
        return getattr(import_module(self.home), f"Async{self.name}" if twin else self.name)


_POSTGRES = _Kind("fencing.locks.postgres", "PostgresLockService")
_REDIS = _Kind("fencing.locks.redis", "RedisLockService")
_REDLOCK = _Kind("fencing.locks.redlock", "RedlockService")
_ETCD = _Kind("fencing.locks.etcd", "EtcdLockService")
_ZOOKEEPER = _Kind("fencing.locks.zookeeper", "ZooKeeperLockService")

_KINDS = {
    "postgresql": _POSTGRES,
    "postgresql+psycopg": _POSTGRES,
    "postgres": _POSTGRES,
    "etcd": _ETCD,
    "etcds": _ETCD,
    "redis": _REDIS,
    "rediss": _REDIS,
    "redis+cluster": _REDIS,
    "rediss+cluster": _REDIS,
    "redis+sentinel": _REDIS,
    "rediss+sentinel": _REDIS,
    "unix": _REDIS,
    "redlock": _REDLOCK,
    "redlocks": _REDLOCK,
    "zookeeper": _ZOOKEEPER,
    "zk": _ZOOKEEPER,
}


_WITH_DRIVER = "postgresql+"
"""How an address begins that tells SQLAlchemy which driver to use."""


def connect(url: str, **settings: Any) -> LockService:  # noqa: ANN401 - the service's own
    """The lock service at an address; nothing is sent yet, unless a cluster has to be found.

    =======================================  ===============================================
    ``postgresql://user@host/database``      PostgreSQL itself, with schema ``fencing``; also
                                             ``postgres://``, and ``postgresql+psycopg://`` or with
                                             another driver of SQLAlchemy's, which is not used
    ``redis://host:6379/0``, ``rediss://``   one Redis, without and with TLS
    ``unix:///run/redis.sock``               one Redis
    ``redis+cluster://h1:6379,h2:6379``      a Redis Cluster; ``rediss+cluster://`` with TLS
    ``redis+sentinel://h1,h2,h3/SERVICE``    a primary that Sentinels watch;
                                             ``rediss+sentinel://`` with TLS
    ``redlock://h1:6379,h2:6379,h3:6379/0``  a majority of nodes; ``redlocks://`` with TLS
    ``etcd://host:2379,host2:2379/``         an etcd; ``etcds://`` with TLS
    ``zookeeper://h1:2181,h2:2181/chroot``   a ZooKeeper ensemble; ``zk://`` is the same
    =======================================  ===============================================

    Args:
        url: The address; an SQLAlchemy URL of a PostgreSQL will do, too. What follows its scheme is
            the service's own; see its ``from_url``.
        **settings: For the service, ``namespace`` for instance; see there.

    Raises:
        LockServiceError: No node of a Redis Cluster could be reached.
        ModuleNotFoundError: The service needs a package that is not installed; the message says
            which extra brings it.
        OSError: A file that a setting names cannot be read, a certificate of etcd's for instance.
        TypeError: The address is not a ``str``, or a setting, also one that is written in the
            address, is none of the service's.
        ValueError: No lock service has such addresses, or the rest of it makes no sense.
    """
    kind, address = _kind_of(url)
    service: LockService = kind.find(twin=False).from_url(address, **settings)
    return service


def connect_async(url: str, **settings: Any) -> AsyncLockService:  # noqa: ANN401 - as above
    """:func:`connect` for asyncio; not a coroutine, as nothing is sent yet.

    Args:
        url: The address, as for :func:`connect`.
        **settings: For the service; see there.

    Raises:
        ModuleNotFoundError: The service needs a package that is not installed; the message says
            which extra brings it.
        OSError: A file that a setting names cannot be read.
        TypeError: The address is not a ``str``, or a setting, also one that is written in the
            address, is none of the service's.
        ValueError: No lock service has such addresses, or the rest of it makes no sense.
    """
    kind, address = _kind_of(url)
    service: AsyncLockService = kind.find(twin=True).from_url(address, **settings)
    return service


def _kind_of(url: str) -> tuple[_Kind, str]:
    """The kind of service, and the address with its scheme as every one of them knows it."""
    if callable(render := getattr(url, "render_as_string", None)):
        url = render(hide_password=False)
    if not isinstance(url, str):
        raise TypeError(f"the address of a lock service must be a str, not {type(url).__name__}")
    scheme, colon, rest = url.partition("://")
    kind = _KINDS.get(scheme.lower())
    if scheme.lower().startswith(_WITH_DRIVER):
        kind = _POSTGRES
    if not colon or kind is None:
        known = ", ".join(f"{name}://" for name in _KINDS)
        # Not the address itself, which may hold a password.
        what = f"{scheme}://" if colon else "no scheme"
        raise ValueError(
            f"no lock service has addresses with {what}; an address begins with one of {known}"
        )
    return kind, f"{scheme.lower()}://{rest}"

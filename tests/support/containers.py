"""Servers in containers, for ``pytest --services=docker``.

Images, by the variable that names another one:

================================  =================  ============================================
``FENCING_TEST_REDIS_IMAGE``      ``redis:8``        listens on 6379
``FENCING_TEST_POSTGRES_IMAGE``   ``postgres:18``    heeds ``POSTGRES_USER`` and its like
``FENCING_TEST_ETCD_IMAGE``       none: tests skip   has ``etcd`` on its PATH, and no entrypoint
``FENCING_TEST_ZOOKEEPER_IMAGE``  ``zookeeper:3.9``  heeds ``ZOO_TICK_TIME``, ``ZOO_CFG_EXTRA`` etc.
================================  =================  ============================================
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fencing.embedded.etcd import ask_etcd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = ["etcd", "postgres", "redis", "zookeeper"]

NO_ETCD_IMAGE = (
    "no image of etcd is the usual one: set FENCING_TEST_ETCD_IMAGE to one that has etcd on its "
    "PATH and no entrypoint, or FENCING_TEST_ETCD_URL to the address of a running etcd"
)

READY_SECONDS = 60.0

_ZOOKEEPER_SETTINGS = {
    "ZOO_TICK_TIME": "100",
    "ZOO_MAX_CLIENT_CNXNS": "0",
    "ZOO_ADMINSERVER_ENABLED": "false",
    "ZOO_4LW_COMMANDS_WHITELIST": "ruok,srvr",
    "ZOO_CFG_EXTRA": "minSessionTimeout=200 maxSessionTimeout=60000",
}
"""For tests: sessions of a second, and as many connections as they like."""


@contextmanager
def redis() -> Iterator[str]:
    """A Redis; its address, for redis-py."""
    from testcontainers.community.redis import RedisContainer

    with RedisContainer(_image("REDIS", "redis:8")) as container:
        host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
        yield f"redis://{host}:{port}/0"


@contextmanager
def postgres() -> Iterator[str]:
    """A PostgreSQL; its address, for SQLAlchemy with psycopg 3."""
    from testcontainers.community.postgres import PostgresContainer

    with PostgresContainer(_image("POSTGRES", "postgres:18"), driver="psycopg") as container:
        yield str(container.get_connection_url())


@contextmanager
def etcd() -> Iterator[str]:
    """An etcd; its address, for a lock service. Skips where no image is named."""
    image = _image("ETCD", "")
    if not image:
        pytest.skip(NO_ETCD_IMAGE)
    anyone = "http://0.0.0.0:2379"
    command = f"etcd --listen-client-urls {anyone} --advertise-client-urls {anyone}"
    with _server(image, 2379, _etcd_serves, command=command) as (host, port):
        yield f"etcd://{host}:{port}/"


@contextmanager
def zookeeper() -> Iterator[str]:
    """A ZooKeeper; its address, for a lock service."""
    image = _image("ZOOKEEPER", "zookeeper:3.9")
    with _server(image, 2181, _zookeeper_serves, settings=_ZOOKEEPER_SETTINGS) as (host, port):
        yield f"zookeeper://{host}:{port}/"


def _image(server: str, default: str) -> str:
    return os.environ.get(f"FENCING_TEST_{server}_IMAGE") or default


@contextmanager
def _server(
    image: str,
    port: int,
    serves: Callable[[str, int], bool],
    *,
    command: str = "",
    settings: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, int]]:
    """A server that serves; its host and port here."""
    from testcontainers.core.container import DockerContainer

    container = DockerContainer(image).with_exposed_ports(port).with_envs(**(settings or {}))
    if command:
        container.with_command(command)
    with container:
        place = container.get_container_host_ip(), int(container.get_exposed_port(port))
        # Asked, as what it logs is its image's, and Docker accepts connections before it does.
        end = time.monotonic() + READY_SECONDS
        while not serves(*place):
            if time.monotonic() >= end:
                said = b"\n".join(container.get_logs()).decode(errors="replace")
                raise TimeoutError(
                    f"{image} does not serve after {READY_SECONDS} s; it said:\n{said}"
                )
            time.sleep(0.1)
        yield place


def _etcd_serves(host: str, port: int) -> bool:
    try:
        health = ask_etcd(f"http://{host}:{port}", "health")
    except (OSError, ValueError):
        return False
    return str(health.get("health")).lower() == "true"


def _zookeeper_serves(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return False

"""Where the tests' servers come from."""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from fencing import embedded
from fencing.embedded.etcd import EtcdProcess
from fencing.embedded.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

DEFAULT_POSTGRES_IMAGE = "postgres:18"
DEFAULT_REDIS_IMAGE = "redis:8"
DEFAULT_ZOOKEEPER_IMAGE = "zookeeper:3.9"


class Services:
    """Finds or starts each server when its address is first asked for.

    Args:
        kind: ``embedded`` or ``docker``: where servers come from that no variable names.
        postgres_bin: Folder of the embedded PostgreSQL's programs; default: the wheel's.
    """

    def __init__(self, kind: str, postgres_bin: str | None = None) -> None:
        self.kind = kind
        self._postgres_bin = postgres_bin
        self._stack = contextlib.ExitStack()

    @cached_property
    def redis_url(self) -> str:
        """Address of a Redis or Valkey, for redis-py."""
        if url := os.environ.get("FENCING_TEST_REDIS_URL"):
            return url
        return self._redis_container() if self.kind == "docker" else self._valkey()

    @cached_property
    def database_url(self) -> str:
        """Address of a PostgreSQL, for SQLAlchemy with psycopg 3."""
        if url := os.environ.get("FENCING_TEST_DATABASE_URL"):
            return url
        return self._postgres_container() if self.kind == "docker" else self._postgres()

    @cached_property
    def etcd_url(self) -> str:
        """Address of an etcd, for a lock service; the test is skipped where there is none."""
        if url := os.environ.get("FENCING_TEST_ETCD_URL"):
            return url
        return self._etcd_container() if self.kind == "docker" else self._etcd()

    @cached_property
    def zookeeper_url(self) -> str:
        """Address of a ZooKeeper, for a lock service; the test is skipped where there is none."""
        if url := os.environ.get("FENCING_TEST_ZOOKEEPER_URL"):
            return url
        return self._zookeeper_container() if self.kind == "docker" else self._zookeeper()

    def _valkey(self) -> str:
        return self._stack.enter_context(embedded.start(postgres=False)).redis_url

    def _postgres(self) -> str:
        return self._stack.enter_context(
            embedded.PostgresProcess(bin_directory=self._postgres_bin, in_memory=True)
        ).url

    def _etcd(self) -> str:
        return self._stack.enter_context(EtcdProcess()).url

    def _etcd_container(self) -> str:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy

        image = os.environ.get("FENCING_TEST_ETCD_IMAGE")
        if image is None:  # none is everybody's
            pytest.skip("name an image that has etcd on its PATH: FENCING_TEST_ETCD_IMAGE")
        anyone = "http://0.0.0.0:2379"
        container = (
            DockerContainer(image)
            .with_command(f"etcd --listen-client-urls {anyone} --advertise-client-urls {anyone}")
            .with_exposed_ports(2379)
            .waiting_for(LogMessageWaitStrategy("ready to serve client requests"))
        )
        started = self._stack.enter_context(container)
        return f"etcd://{started.get_container_host_ip()}:{started.get_exposed_port(2379)}/"

    def _zookeeper(self) -> str:
        return self._stack.enter_context(ZooKeeperProcess()).url

    def _zookeeper_container(self) -> str:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import LogMessageWaitStrategy

        image = os.environ.get("FENCING_TEST_ZOOKEEPER_IMAGE", DEFAULT_ZOOKEEPER_IMAGE)
        container = (
            DockerContainer(image)
            .with_exposed_ports(2181)
            .waiting_for(LogMessageWaitStrategy("binding to port"))
        )
        started = self._stack.enter_context(container)
        return f"zookeeper://{started.get_container_host_ip()}:{started.get_exposed_port(2181)}/"

    def _redis_container(self) -> str:
        from testcontainers.community.redis import RedisContainer

        image = os.environ.get("FENCING_TEST_REDIS_IMAGE", DEFAULT_REDIS_IMAGE)
        container = self._stack.enter_context(RedisContainer(image))
        host, port = container.get_container_host_ip(), container.get_exposed_port(6379)
        return f"redis://{host}:{port}/0"

    def _postgres_container(self) -> str:
        from testcontainers.community.postgres import PostgresContainer

        image = os.environ.get("FENCING_TEST_POSTGRES_IMAGE", DEFAULT_POSTGRES_IMAGE)
        container = self._stack.enter_context(PostgresContainer(image, driver="psycopg"))
        return str(container.get_connection_url())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

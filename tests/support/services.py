"""Where the tests' servers come from."""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from typing import TYPE_CHECKING

from fencing import embedded
from fencing.embedded.etcd import EtcdProcess
from fencing.embedded.zookeeper import ZooKeeperProcess
from tests.support import containers

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self


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
        return self._find("REDIS", containers.redis, self._valkey)

    @cached_property
    def database_url(self) -> str:
        """Address of a PostgreSQL, for SQLAlchemy with psycopg 3."""
        return self._find("DATABASE", containers.postgres, self._postgres)

    @cached_property
    def etcd_url(self) -> str:
        """Address of an etcd, for a lock service; the test is skipped where there is none."""
        return self._find("ETCD", containers.etcd, self._etcd)

    @cached_property
    def zookeeper_url(self) -> str:
        """Address of a ZooKeeper, for a lock service; the test is skipped where there is none."""
        return self._find("ZOOKEEPER", containers.zookeeper, self._zookeeper)

    def _find(
        self,
        name: str,
        container: Callable[[], AbstractContextManager[str]],
        own: Callable[[], str],
    ) -> str:
        if url := os.environ.get(f"FENCING_TEST_{name}_URL"):
            return url
        return self._stack.enter_context(container()) if self.kind == "docker" else own()

    def _valkey(self) -> str:
        return self._stack.enter_context(embedded.start(postgres=False)).redis_url

    def _postgres(self) -> str:
        return self._stack.enter_context(
            embedded.PostgresProcess(
                # It comes and locks when it likes; tests that are about that have it come.
                {"autovacuum": "off"},
                bin_directory=self._postgres_bin,
                in_memory=True,
            )
        ).url

    def _etcd(self) -> str:
        return self._stack.enter_context(EtcdProcess()).url

    def _zookeeper(self) -> str:
        return self._stack.enter_context(ZooKeeperProcess()).url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

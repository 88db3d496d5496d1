"""Servers and databases for all tests.

Servers are found in this order:

1. ``FENCING_TEST_REDIS_URL``, ``FENCING_TEST_DATABASE_URL``, ``FENCING_TEST_ETCD_URL`` and
   ``FENCING_TEST_ZOOKEEPER_URL``, each where it is set; the database user must be allowed to
   create databases.
2. ``pytest --services=docker``: testcontainers, with the images that
   ``FENCING_TEST_REDIS_IMAGE``, ``FENCING_TEST_POSTGRES_IMAGE``, ``FENCING_TEST_ETCD_IMAGE`` and
   ``FENCING_TEST_ZOOKEEPER_IMAGE`` name; see ``tests.support.containers``.
3. The embedded servers; ``--postgres-bin=/usr/lib/postgresql/15/bin`` takes PostgreSQL from
   there. etcd, ZooKeeper and PgBouncer, which no wheel brings, are Debian's packages; a test that
   needs one is skipped where it is not installed, except in CI, where it fails.

Fixtures of the session: ``redis_url``, ``database_url``, ``etcd_url``, ``zookeeper_url``. Of each
test: ``database`` and ``fenced_database`` (addresses of fresh databases), ``redis_namespace``,
``redis_client``, ``etcd_namespace``, ``zookeeper_namespace``, ``own_valkey`` and ``own_etcd``
(servers to kill).
"""

from __future__ import annotations

import contextlib
import os
import signal
import uuid
from typing import TYPE_CHECKING

import pytest
import redis

from fencing.embedded import ValkeyProcess
from fencing.embedded.etcd import EtcdProcess
from fencing.embedded.places import MissingProgramError
from tests.support.databases import DatabaseFactory
from tests.support.services import Services

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator


# A shell ignores it in what it runs in the background, and so would all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--services",
        choices=["embedded", "docker"],
        default="embedded",
        help="where servers come from that no FENCING_TEST_..._URL names (default: embedded)",
    )
    parser.addoption(
        "--postgres-bin",
        metavar="DIR",
        help="programs of the embedded PostgreSQL (default: the wheel's)",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """Skip a test whose fixtures need a program that is not installed."""
    with skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """Skip a test that needs a program that is not installed."""
    with skipping():
        return (yield)


@contextlib.contextmanager
def skipping() -> Iterator[None]:
    try:
        yield
    except MissingProgramError as error:
        if os.environ.get("CI") == "true":  # where all are installed
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def services(pytestconfig: pytest.Config) -> Iterator[Services]:
    """The servers of this run (of this worker, with pytest-xdist), each started when asked for."""
    kind, programs = (pytestconfig.getoption(o) for o in ("--services", "--postgres-bin"))
    with Services(kind, programs) as services:
        yield services


@pytest.fixture(scope="session")
def redis_url(services: Services) -> str:
    """Address of a Redis or Valkey that tests share; see ``redis_namespace``."""
    return services.redis_url


@pytest.fixture(scope="session")
def zookeeper_url(services: Services) -> str:
    """Address of a ZooKeeper that tests share; see ``zookeeper_namespace``."""
    return services.zookeeper_url


@pytest.fixture
def zookeeper_namespace() -> str:
    """A namespace of this test's own."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def database_url(services: Services) -> str:
    """SQLAlchemy address of the server's own database: to look at, not to write to."""
    return services.database_url


@pytest.fixture(scope="session")
def database_factory(database_url: str) -> Iterator[DatabaseFactory]:
    """Makes databases; for tests that need several."""
    with DatabaseFactory(database_url) as factory:
        yield factory


@pytest.fixture
def database(database_factory: DatabaseFactory) -> Iterator[str]:
    """SQLAlchemy address of a fresh, empty database of this test's own."""
    with database_factory.empty() as url:
        yield url


@pytest.fixture
def fenced_database(database_factory: DatabaseFactory) -> Iterator[str]:
    """SQLAlchemy address of a fresh database with schema ``fencing`` installed."""
    with database_factory.fenced() as url:
        yield url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """A client of the shared server; answers are bytes."""
    with redis.Redis.from_url(redis_url) as client:
        yield client


@pytest.fixture
def redis_namespace(redis_client: redis.Redis) -> Iterator[str]:
    """A namespace of this test's own; keys that contain it are deleted afterwards."""
    namespace = f"test-{uuid.uuid4().hex}"
    yield namespace
    keys = list(redis_client.scan_iter(match=f"*{namespace}*", count=1000))
    if keys:
        redis_client.delete(*keys)


@pytest.fixture(scope="session")
def etcd_url(services: Services) -> str:
    """Address of an etcd that tests share; see ``etcd_namespace``. Skips where there is none."""
    return services.etcd_url


@pytest.fixture
def etcd_namespace() -> str:
    """A namespace of this test's own; its etcd is thrown away with all that is in it."""
    return f"test-{uuid.uuid4().hex}"


@pytest.fixture
def own_etcd() -> Iterator[EtcdProcess]:
    """A running etcd of this test's own, to stop, kill, restore and start again."""
    with EtcdProcess() as etcd:
        yield etcd


@pytest.fixture
def own_valkey() -> Iterator[ValkeyProcess]:
    """A running Valkey of this test's own, to flush, stop, kill and start again."""
    with ValkeyProcess() as valkey:
        yield valkey

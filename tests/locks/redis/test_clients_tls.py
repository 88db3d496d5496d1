"""Over TLS: the server's certificate is checked, and the client's is shown."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from fencing.embedded.cluster import ValkeyCluster
from fencing.embedded.proxy import TcpProxy
from fencing.errors import LockServiceError
from fencing.locks.redis import AsyncRedisLockService, RedisLockService
from tests.contract.facade import ThreadedLocks, in_thread

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

trustme = pytest.importorskip("trustme", reason="makes the certificates")


@pytest.fixture(scope="module")
def authority() -> Any:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The authority's certificate, and a client's with its key."""
    folder = tmp_path_factory.mktemp("certificates")
    certificate = authority.issue_cert("app@example.org")
    paths = {name: folder / f"{name}.pem" for name in ("ca", "client", "key")}
    authority.cert_pem.write_to_path(paths["ca"])
    certificate.cert_chain_pems[0].write_to_path(paths["client"])
    certificate.private_key_pem.write_to_path(paths["key"])
    return paths


def server_side(authority: Any, name: str, *, wants_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if wants_certificate:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


@pytest.fixture(scope="module")
def encrypted(redis_url: str, authority: Any) -> Iterator[TcpProxy]:
    with TcpProxy.to(redis_url, server_side(authority, "127.0.0.1")) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def mutual(redis_url: str, authority: Any) -> Iterator[TcpProxy]:
    context = server_side(authority, "127.0.0.1", wants_certificate=True)
    with TcpProxy.to(redis_url, context) as proxy:
        yield proxy


async def use(kind: str, url: str, namespace: str, **settings: Any) -> None:
    """Acquire and release, and verify; over connections that speak TLS by these settings."""
    if kind == "sync":
        with RedisLockService.from_url(url, namespace=namespace, **settings) as service:
            locks: Any = ThreadedLocks(service)
            await (await locks.acquire("r", ttl=20)).release()
            assert (await in_thread(service.verify)).nodes
    else:
        async with AsyncRedisLockService.from_url(url, namespace=namespace, **settings) as locks:
            await (await locks.acquire("r", ttl=20)).release()
            assert (await locks.verify()).nodes


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestTls:
    @pytest.mark.parametrize("protocol", [2, 3])
    async def test_a_certificate_of_an_authority_that_is_trusted(
        self, kind, encrypted, files, redis_namespace, protocol
    ):
        assert encrypted.url.startswith("rediss://")
        await use(
            kind, encrypted.url, redis_namespace, ssl_ca_certs=str(files["ca"]), protocol=protocol
        )

    async def test_another_s_certificate_is_refused(self, kind, encrypted, redis_namespace):
        with pytest.raises(LockServiceError, match=r"cannot be reached.*(?i:certificate)"):
            await use(kind, encrypted.url, redis_namespace)

    async def test_a_certificate_for_another_host_is_refused(
        self, kind, redis_url, authority, files, redis_namespace
    ):
        with (
            TcpProxy.to(redis_url, server_side(authority, "redis.example")) as proxy,
            pytest.raises(LockServiceError, match=r"cannot be reached.*(?i:certificate)"),
        ):
            await use(
                kind, proxy.url, redis_namespace,
                ssl_ca_certs=str(files["ca"]), ssl_check_hostname=True,
            )  # fmt: skip

    async def test_a_server_that_wants_a_certificate_is_shown_one(
        self, kind, mutual, files, redis_namespace
    ):
        shown = {"ssl_certfile": str(files["client"]), "ssl_keyfile": str(files["key"])}
        await use(kind, mutual.url, redis_namespace, ssl_ca_certs=str(files["ca"]), **shown)

    async def test_without_one_it_is_out_of_reach(self, kind, mutual, files, redis_namespace):
        with pytest.raises(LockServiceError, match="cannot be reached"):
            await use(kind, mutual.url, redis_namespace, ssl_ca_certs=str(files["ca"]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[ValkeyCluster]:
    with ValkeyCluster(nodes=2) as cluster:
        yield cluster


@pytest.mark.parametrize("kind", ["sync", "async"])
class TestCluster:
    async def test_every_node_is_reached_by_tls(self, kind, cluster, authority, files):
        with contextlib.ExitStack() as stack:
            proxies = {
                node.port: stack.enter_context(
                    TcpProxy.to(node.url, server_side(authority, "127.0.0.1"))
                )
                for node in cluster.nodes
            }

            def remap(address: tuple[str, int]) -> tuple[str, int]:
                host, port = address
                return host, proxies[port].port

            url = f"rediss+cluster://127.0.0.1:{proxies[cluster.port].port}"
            settings = {"ssl_ca_certs": str(files["ca"]), "address_remap": remap}
            for resource in "abcdef":
                await use(kind, url, resource, **settings)
            assert all(proxy.commands("EVALSHA", "EVAL") for proxy in proxies.values())
            with pytest.raises(LockServiceError, match=r"(?i:certificate)"):
                await use(kind, url, "fencing", address_remap=remap)

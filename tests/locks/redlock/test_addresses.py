"""Addresses with a password, and nodes that speak TLS: real ones."""

from __future__ import annotations

import contextlib
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from fencing import LockServiceError, connect, connect_async
from fencing.embedded import ValkeyProcess
from fencing.embedded.proxy import TcpProxy
from tests.contract.facade import ThreadedLocks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

trustme = pytest.importorskip("trustme", reason="makes the certificates")

pytestmark = pytest.mark.parametrize("kind", ["sync", "async"])


@contextlib.asynccontextmanager
async def connected(kind: str, url: str, **settings: Any) -> AsyncIterator[Any]:
    settings = {"node_timeout": 2.0, **settings}
    if kind == "sync":
        service: Any = connect(url, **settings)
        with service:
            yield ThreadedLocks(service)
    else:
        service = connect_async(url, **settings)
        async with service:
            yield service


def places(nodes: list[Any]) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node in nodes)


@pytest.fixture(scope="module")
def locked_up() -> Iterator[list[ValkeyProcess]]:
    """Nodes that want a password."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(ValkeyProcess("--requirepass", "s3cr,t/@")) for _ in range(3)]


@pytest.fixture(scope="module")
def authority() -> Any:
    return trustme.CA()


@pytest.fixture(scope="module")
def encrypted(own_nodes: list[ValkeyProcess], authority: Any) -> Iterator[list[TcpProxy]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(TcpProxy.to(node.url, context)) for node in own_nodes]


async def test_one_password_for_all_nodes(kind: str, locked_up: list[ValkeyProcess]) -> None:
    url = f"redlock://:s3cr%2Ct%2F%40@{places(locked_up)}/0"
    async with connected(kind, url, namespace=kind) as locks, locks.acquire("r", ttl=20) as lease:
        assert lease.token == 1
    async with connected(kind, f"redlock://:wrong@{places(locked_up)}/0") as locks:
        with pytest.raises(LockServiceError, match="credentials") as caught:  # not tried again
            await locks.acquire("r", ttl=20)
        assert "wrong" not in str(caught.value)


async def test_tls_to_all_nodes(
    kind: str, encrypted: list[TcpProxy], authority: Any, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(ca)
    url = f"redlocks://{places(encrypted)}/0?ssl_ca_certs={ca}"
    async with connected(kind, url, namespace=kind) as locks, locks.acquire("r", ttl=20) as lease:
        assert lease.token == 1
    async with connected(kind, f"redlocks://{places(encrypted)}/0", namespace=kind) as locks:
        # What the last attempt has met is told: the certificate, or no answer on a busy machine.
        with pytest.raises(LockServiceError):
            await locks.acquire("r", ttl=20, blocking=False)

"""Round trips of bare psycopg, counted by a proxy in front of the server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fencing import postgres
from fencing.embedded.proxy import TcpProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bank import Bank


@pytest.fixture
def proxy(bank: Bank) -> Iterator[TcpProxy]:
    with TcpProxy.to(bank.plain_url) as proxy:
        yield proxy


@pytest.fixture
async def connection(side, proxy: TcpProxy):
    return await side.connect(proxy.url)


def round_trips(proxy: TcpProxy) -> int:
    return proxy.commands("Q", "S")


@pytest.mark.parametrize("autocommit", [True, False])
async def test_begin_and_entry_are_one(
    side, connection, proxy: TcpProxy, lease, autocommit
) -> None:
    await side.set_autocommit(connection, value=autocommit)
    notices: list[object] = []
    connection.add_notice_handler(notices.append)
    proxy.reset_counts()
    async with side.block(postgres.transaction(connection, lease)):
        assert round_trips(proxy) == 1
        await side.execute(connection, "SELECT 1")
    assert round_trips(proxy) == 3
    assert notices == []
    assert connection.autocommit == autocommit


async def test_an_admission_is_one(side, connection, proxy: TcpProxy, locks, resource) -> None:
    lease = await side.do(locks.acquire(resource))
    proxy.reset_counts()
    await side.do(postgres.admit(connection, lease))
    assert round_trips(proxy) == 1

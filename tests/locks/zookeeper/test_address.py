"""An address that could never be connected to is refused when the service is made."""

from __future__ import annotations

import pytest

from fencing import AsyncZooKeeperLockService, ZooKeeperLockService

KINDS = [ZooKeeperLockService, AsyncZooKeeperLockService]

BAD = [
    "h1:99999", "h1:0", "h1:", "h1:x", "h1:²", "[h1", "h1]", "[::1", "[::g]:2181", "::1", "h1,,h2",
    "h1:2181,h2:99999", "h1 h2", "h1:1/../x", "h1:1/a//b", "h1:1/a/./b", "h1:1//a", "h1:1//",
    "h1:1/a\0b",
]  # fmt: skip
GOOD = ["h1", "h1:2181", "h1,h2:2182/", "10.0.0.1:2181/a/b", "[::1]:2181,[fe80::1]", "h_1.x-y:1/a"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hosts", BAD)
def test_a_bad_address_is_refused_and_no_password_told(kind: type, hosts: str) -> None:
    with pytest.raises(ValueError, match="address of ZooKeeper"):
        kind(hosts)
    if hosts.endswith("//"):
        return  # an address may end like this
    with pytest.raises(ValueError, match="address of ZooKeeper") as caught:
        kind.from_url(f"zookeeper://someone:geheim@{hosts}")
    assert "geheim" not in str(caught.value)


def test_a_password_without_its_at_sign_is_not_told() -> None:
    with pytest.raises(ValueError, match="server 1") as caught:
        ZooKeeperLockService.from_url("zookeeper://someone:geheim/path")
    assert "geheim" not in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hosts", GOOD)
def test_a_good_one_is_accepted(kind: type, hosts: str) -> None:
    kind(hosts)
    kind.from_url(f"zk://{hosts}")

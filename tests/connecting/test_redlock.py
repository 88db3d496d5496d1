"""Addresses of a Redlock: ``redlock://`` and ``redlocks://``."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio

from fencing import AsyncRedlockService, RedlockService, connect, connect_async
from fencing.locks.redlock.nodes import urls_in


def settings_of(service: Any) -> list[dict[str, Any]]:
    return [
        sibling._way._made.connection_pool.connection_kwargs for sibling in service._nodes._siblings
    ]


@pytest.mark.parametrize(
    ("url", "nodes"),
    [
        (
            "redlock://a:1,b:2,c:3/0",
            ["redis://a:1/0", "redis://b:2/0", "redis://c:3/0"],
        ),
        ("redlock://a,b,c", ["redis://a", "redis://b", "redis://c"]),
        (
            "redlocks://:p%40ss@a:1,[::1]:2,c:3/5?socket_timeout=1",
            [
                "rediss://:p%40ss@a:1/5?socket_timeout=1",
                "rediss://:p%40ss@[::1]:2/5?socket_timeout=1",
                "rediss://:p%40ss@c:3/5?socket_timeout=1",
            ],
        ),
        (
            "redlock://u:p@a:1,b:2,v:q@c:3/0",
            ["redis://u:p@a:1/0", "redis://u:p@b:2/0", "redis://v:q@c:3/0"],
        ),
    ],
)
def test_an_address_names_its_nodes(url: str, nodes: list[str]) -> None:
    assert urls_in(url) == nodes


@pytest.mark.parametrize(
    ("connecting", "kind"), [(connect, RedlockService), (connect_async, AsyncRedlockService)]
)
def test_both_kinds_are_made_of_an_address(connecting: Any, kind: type) -> None:
    url = "redlock://user:secret@h1:1,h2:2,h3:3/7?socket_timeout=3"
    service = connecting(url, namespace="n", node_timeout=0.5)
    assert type(service) is kind
    assert service.namespace == "n"
    assert "secret" not in repr(service)
    for number, settings in enumerate(settings_of(service), 1):
        assert (settings["host"], settings["port"], settings["db"]) == (f"h{number}", number, 7)
        assert (settings["username"], settings["password"]) == ("user", "secret")
        assert settings["socket_timeout"] == 3


@pytest.mark.parametrize("connecting", [connect, connect_async])
def test_tls_is_spoken_to_all_of_them(connecting: Any) -> None:
    service = connecting("redlocks://h1,h2,h3/0", ssl_cert_reqs="required")
    for sibling in service._nodes._siblings:
        assert "SSLConnection" in sibling._way._made.connection_pool.connection_class.__name__


@pytest.mark.parametrize("connecting", [connect, connect_async])
@pytest.mark.parametrize(
    ("url", "settings", "error", "says"),
    [
        ("redlock://a:1/0", {}, ValueError, "odd number of nodes, 3 or more, not 1"),
        ("redlock://a:1,b:2/0", {}, ValueError, "not 2"),
        ("redlock://a:1,b:2,c:3,d:4/0", {}, ValueError, "not 4"),
        ("redlock://a:1,b:2,a:1/0", {}, ValueError, "twice"),
        ("redlock://a:1,,c:3/0", {}, ValueError, "one of them is empty"),
        ("redlock:///0", {}, ValueError, "one of them is empty"),
        ("redlock://a,b,c", {"node_timeout": 0}, ValueError, "node_timeout"),
        ("redlock://a,b,c", {"node_timeout": 3}, ValueError, "node_timeout"),
        ("redlock://a,b,c", {"node_timeout": float("nan")}, ValueError, "node_timeout"),
        ("redlock://a,b,c", {"node_timeout": "1"}, TypeError, "node_timeout"),
        ("redlock://a,b,c", {"namespace": "{"}, ValueError, "namespace"),
    ],
)
def test_what_makes_no_sense_is_refused(
    connecting: Any, url: str, settings: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        connecting(url, **settings)


def test_clients_must_be_of_the_right_kind() -> None:
    sync = [redis.Redis(port=port) for port in (1, 2, 3)]
    twins = [redis.asyncio.Redis(port=port) for port in (1, 2, 3)]
    RedlockService(iter(sync))
    AsyncRedlockService(tuple(twins))
    with pytest.raises(TypeError, match="go with AsyncRedlockService"):
        RedlockService(twins)
    with pytest.raises(TypeError, match="go with RedlockService"):
        AsyncRedlockService(sync)
    with pytest.raises(TypeError, match="a list of clients"):
        RedlockService(sync[0])
    with pytest.raises(TypeError, match="each node is one Redis"):
        RedlockService([*sync[:2], sync[2].pipeline()])
    with pytest.raises(ValueError, match="twice"):
        RedlockService([sync[0], sync[1], redis.Redis(port=2)])

"""Addresses that make no sense: what is wrong is told, and no user or password with it."""

from __future__ import annotations

from typing import Any

import pytest
from redis.connection import URL_QUERY_ARGUMENT_PARSERS

from fencing import (
    AsyncRedisLockService,
    AsyncRedlockService,
    RedisLockService,
    RedlockService,
)

REDIS = [RedisLockService, AsyncRedisLockService]
REDLOCK = [RedlockService, AsyncRedlockService]

# Each as it comes when a password is not escaped, and then what is wrong in other places.
WRONG = [
    "USER:SECRET/x@h:1",
    "USER:SECRET#x@h:1",
    "USER:SECRET?x@h:1",
    "USER:1/SECRET@h:1",
    "USER:1#SECRET@h:1",
    "USER:1?SECRET@h:1",
    "USER:1?SECRET=1#SECRET@h:1",
    "USER:[SECRET@h:1",
    "USER:SECRET\N{ACCOUNT OF}@h:1",
    "USER:SECRET@h:port",
    "USER:SECRET@h:99999",
    "USER:SECRET@h:SECRET:1",
    "USER:SECRET@[h",
    "USER:SECRET@h:1/0?socket_timeout=SECRET",
]
if "protocol" in URL_QUERY_ARGUMENT_PARSERS:  # older versions look at it as they connect
    WRONG.append("USER:SECRET@h:1/0?protocol=SECRET")


def refuses(service: Any, url: str) -> None:
    with pytest.raises(ValueError, match=r"makes no sense|Invalid value for") as caught:
        service.from_url(url)
    error: BaseException | None = caught.value
    while error is not None:
        assert "SECRET" not in str(error)
        assert "USER" not in str(error)
        shown = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or shown


@pytest.mark.parametrize("service", REDIS)
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize("rest", WRONG)
def test_of_a_redis(service: Any, scheme: str, rest: str) -> None:
    if scheme == "redis+sentinel" and "@h:1" in rest:
        rest = rest.replace("/0", "").replace("@h:1", "@h:1/main")
    refuses(service, f"{scheme}://{rest}")


@pytest.mark.parametrize("service", REDLOCK)
@pytest.mark.parametrize("scheme", ["redlock", "redlocks"])
@pytest.mark.parametrize(
    "rest", [*WRONG, "USER:x,SECRET@h:1", "USER:SECRET,x@h:1", "USER:SECRET@h:1,i:port"]
)
def test_of_a_redlock(service: Any, scheme: str, rest: str) -> None:
    rest = rest.replace("@h:1", "@h:1,i:2,j:3", 1)
    refuses(service, f"{scheme}://{rest}")


@pytest.mark.parametrize("service", REDIS)
@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://:a%40b%2Fc@/3",
        "redis://h/0?client_name=a@b",
        "redis://u@[::1]:7/0#here",
        "unix:///run/a@b.sock?db=1",
    ],
)
def test_what_makes_sense_is_still_taken(service: Any, url: str) -> None:
    assert isinstance(service.from_url(url), service)  # nothing is connected yet

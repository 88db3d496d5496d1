"""Commands to one server of Redis's kind, and waiting for what servers tell nobody."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import redis

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.embedded.valkey import ValkeyProcess

__all__ = ["ask", "until"]

WAIT_SECONDS = 30.0
LOOK_INTERVAL = 0.02  # seconds


def ask(server: ValkeyProcess, *words: str | int) -> Any:  # noqa: ANN401 - whatever the server answers
    """Run a command on one server, on a connection of its own.

    Args:
        server: Which.
        *words: The command, such as ``"CLUSTER FAILOVER"``, and its arguments.

    Returns:
        The answer; strings are bytes.

    Raises:
        redis.RedisError: If it cannot be reached within 10 s, or refuses.
    """
    with redis.Redis.from_url(server.url, socket_timeout=10) as client:
        return client.execute_command(*words)


def until(happened: Callable[[], bool], what: str) -> None:
    """Wait for something of which servers tell nobody.

    Args:
        happened: Looks whether it has.
        what: What it is, for the message.

    Raises:
        TimeoutError: It has not, for 30 s.
    """
    deadline = time.monotonic() + WAIT_SECONDS
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(LOOK_INTERVAL)

"""Holders that are stopped in real processes, on bare psycopg."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from fencing import FencingError, RedisLockService, postgres
from tests.support.processes import ChildProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bank import Bank
    from tests.support.child import Parent

TTL = 1.0
PATIENCE = 15.0
READ = "SELECT balance FROM accounts WHERE id = %s"
WRITE = "UPDATE accounts SET balance = %s WHERE id = %s"


@pytest.fixture
def guard(redis_url: str, redis_namespace: str, bank: Bank) -> Iterator[postgres.PsycopgGuard]:
    locks = RedisLockService.from_url(redis_url, namespace=redis_namespace)
    with postgres.PsycopgGuard(locks, bank.plain_url) as guard:
        yield guard


def zombie(
    parent: Parent, redis_url: str, namespace: str, url: str, account: int, how: str
) -> None:
    """Is stopped in its transaction, or before it begins, and goes on."""
    locks = RedisLockService.from_url(redis_url, namespace=namespace)
    with (
        postgres.PsycopgGuard(locks, url) as guard,
        psycopg.connect(url) as connection,
        guard.acquire(f"account:{account}", ttl=TTL) as lease,
        ExitStack() as block,
    ):
        if how == "entered":
            block.enter_context(postgres.errors_translated(connection))
            postgres.enter(connection, lease)
        elif how != "before it begins":
            block.enter_context(postgres.transaction(connection, lease))
        if how == "writing":
            connection.execute(WRITE, (0, account))
        parent.report("open", pid=connection.info.backend_pid)
        parent.wait_for("go on")
        if how == "before it begins":
            # As if it had been stopped between its look at the clock and sending.
            lease.trusted_until += PATIENCE
            block.enter_context(postgres.transaction(connection, lease))
        connection.execute(WRITE, (0, account))


def reporting_zombie(parent: Parent, *arguments: Any) -> None:
    """Reports how it ended."""
    try:
        zombie(parent, *arguments)
    except FencingError as error:
        parent.report("refused", error=type(error).__name__)
    else:
        parent.report("done")


@pytest.mark.parametrize("how", ["writing", "reading", "entered", "before it begins"])
def test_a_stopped_holder_is_overtaken_and_then_refused(
    guard, bank: Bank, account: int, redis_url: str, redis_namespace: str, how: str
) -> None:
    arguments = (redis_url, redis_namespace, bank.plain_url, account, how)
    with ChildProcess(reporting_zombie, *arguments) as child:
        backend = child.wait_for("open")["pid"]
        child.suspend()
        with (
            guard.acquire(f"account:{account}", ttl=PATIENCE, blocking_timeout=PATIENCE) as lease,
            psycopg.connect(bank.plain_url) as connection,
            postgres.transaction(connection, lease),
        ):
            (balance,) = connection.execute(READ, (account,)).fetchone()
            connection.execute(WRITE, (balance - 10, account))
        if how != "before it begins":
            bank.wait_until_gone(backend)
        child.resume()
        child.tell("go on")
        assert child.wait_for("refused")["error"] == "StaleFenceError"
        child.check()
    assert bank.balance(account) == 90

"""A guard whose transactions leave receipts, and which counts what is observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from fencing import postgres
from fencing.schema import ddl

if TYPE_CHECKING:
    from tests.support.bank import Bank

RECEIPTS = "SELECT count(*) FROM fencing.receipt"
WRITE = "UPDATE accounts SET balance = balance - 1 WHERE id = %s"


async def test_every_transaction_leaves_one(side: Any, locks: Any, own_bank: Bank) -> None:
    for receipts in (False, True):
        guard = side.guard(locks, own_bank.plain_url, receipts=receipts)
        connection = await side.connect(own_bank.plain_url)
        account = own_bank.new_account()
        before = own_bank.value(RECEIPTS)
        lease = await side.do(guard.acquire(f"account:{account}"))
        async with side.block(lease), side.block(postgres.transaction(connection, lease)):
            await side.do(connection.execute(WRITE, (account,)))
        assert own_bank.value(RECEIPTS) - before == receipts
        assert own_bank.balance(account) == 99


async def test_what_is_observed_is_counted(side: Any, locks: Any, own_bank: Bank) -> None:
    with psycopg.connect(own_bank.plain_url) as admin:
        for statement in ddl.alter_fence("accounts", mode="observe"):
            admin.execute(statement.encode())
    guard = side.guard(locks, own_bank.plain_url)
    account = own_bank.new_account()

    connection = await side.connect(own_bank.plain_url)
    await side.do(connection.execute(WRITE, (account,)))
    assert not guard.observed  # nobody has told us of this connection
    guard.observe(connection)
    guard.observe(connection)
    await side.do(connection.execute(WRITE, (account,)))
    await side.do(connection.commit())
    assert guard.observed == {("public.accounts", "unfenced"): 1}

    another = await side.connect(own_bank.plain_url)
    lease = await side.do(guard.acquire("account:another"))
    async with side.block(lease), side.block(postgres.transaction(another, lease)):
        await side.do(another.execute(WRITE, (account,)))
    assert guard.observed == {("public.accounts", "unfenced"): 2}

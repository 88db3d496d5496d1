"""What SQLAlchemy does not see, the database refuses as well: with the driver's own errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import asyncpg
import psycopg
import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from fencing import AsyncGuard, Guard, StaleFenceError
from fencing.schema.names import claim_item
from tests.support.bank import ALICE, Bank, enter_by_hand
from tests.support.writes import BEHIND_WRITES, RAW_WRITES, copy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.writes import RawWrite, Write

every_raw_write = pytest.mark.parametrize("write", RAW_WRITES.values(), ids=RAW_WRITES.keys())
every_write_behind = pytest.mark.parametrize(
    "write", BEHIND_WRITES.values(), ids=BEHIND_WRITES.keys()
)


@pytest.fixture
def untouched(bank: Bank, account: int) -> Iterator[None]:
    """What is committed on the account is the same before and after the test."""
    before = bank.state(account)
    yield
    assert bank.state(account) == before


@pytest.fixture
def connection(bank: Bank) -> Iterator[psycopg.Connection]:
    """Another program's connection."""
    connection = psycopg.connect(bank.plain_url)
    yield connection
    connection.close()


@every_raw_write
class TestAnotherProgram:
    @pytest.mark.usefixtures("untouched")
    def test_its_unfenced_write_is_refused(
        self, connection: psycopg.Connection, account: int, write: RawWrite
    ) -> None:
        with pytest.raises(psycopg.Error) as refusal:
            write(connection, account)
        assert refusal.value.sqlstate == "ZF002"
        assert_usable(connection)

    @pytest.mark.usefixtures("untouched")
    def test_its_stale_lease_is_refused_where_it_enters(
        self, connection, bank: Bank, account: int, resource: str, write: RawWrite
    ) -> None:
        bank.admit(resource, 1, ALICE)
        bank.admit(resource, 2)
        with pytest.raises(psycopg.Error) as refusal:
            enter_by_hand(connection, resource, 1, ALICE)
        assert refusal.value.sqlstate == "ZF001"
        connection.rollback()
        with pytest.raises(psycopg.Error, match="unfenced"):
            write(connection, account)
        assert_usable(connection)

    @pytest.mark.usefixtures("untouched")
    def test_an_old_snapshot_does_not_help_it(
        self, connection, bank: Bank, account: int, resource: str, write: RawWrite
    ) -> None:
        bank.admit(resource, 1, ALICE)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("SELECT 1 FROM accounts LIMIT 1")
        bank.admit(resource, 2)
        enter_by_hand(connection, resource, 1, ALICE)
        with pytest.raises(psycopg.errors.SerializationFailure):
            write(connection, account)
        assert_usable(connection)

    @pytest.mark.usefixtures("untouched")
    def test_a_claim_of_the_transaction_before_is_refused(
        self, connection, bank: Bank, account: int, resource: str, write: RawWrite
    ) -> None:
        bank.admit(resource, 1, ALICE)
        enter_by_hand(connection, resource, 1, ALICE)
        claim = connection.execute("SELECT current_setting('fencing.claim')").fetchone()
        connection.commit()
        # As a pooler that does not reset its sessions would leave it.
        connection.execute("SELECT set_config('fencing.claim', %s, false)", claim)
        connection.commit()
        with pytest.raises(psycopg.Error) as refusal:
            write(connection, account)
        assert refusal.value.sqlstate == "ZF002"
        assert_usable(connection)

    def test_its_lease_is_good_for_its_write(
        self, connection, bank: Bank, account: int, resource: str, write: RawWrite
    ) -> None:
        before = bank.state(account)
        bank.admit(resource, 1, ALICE)
        enter_by_hand(connection, resource, 1, ALICE)
        write(connection, account)
        connection.commit()
        assert bank.state(account) != before

    @pytest.mark.usefixtures("untouched")
    def test_session_replication_role_does_not_switch_the_guard_off(
        self, connection, account: int, write: RawWrite
    ) -> None:
        connection.execute("SET session_replication_role = replica")
        with pytest.raises(psycopg.Error, match="unfenced"):
            write(connection, account)
        assert_usable(connection)

    @pytest.mark.usefixtures("untouched")
    def test_a_raw_connection_of_a_guarded_engine_presents_nothing(
        self, guard: Guard, engine: Engine, account: int, resource: str, write
    ) -> None:
        with guard.acquire(resource):
            raw = engine.raw_connection()
            try:
                with pytest.raises(psycopg.Error) as refusal:
                    write(raw.driver_connection, account)
                assert refusal.value.sqlstate == "ZF002"
                assert_usable(raw.driver_connection)
            finally:
                raw.close()


def assert_usable(connection: psycopg.Connection) -> None:
    connection.rollback()
    assert connection.execute("SELECT 1").fetchone() == (1,)
    connection.rollback()


@every_write_behind
class TestBehindASession:
    @pytest.mark.usefixtures("guard", "untouched")
    def test_an_unfenced_write_is_refused(self, engine: Engine, account: int, write: Write) -> None:
        with Session(engine) as session:
            with pytest.raises(psycopg.Error) as refusal:
                write(session, account)
            assert refusal.value.sqlstate == "ZF002"
            session.rollback()
            assert session.execute(text("SELECT 1")).scalar_one() == 1

    @pytest.mark.usefixtures("untouched")
    def test_an_overtaken_holder_is_refused(
        self, guard: Guard, engine: Engine, bank: Bank, account, resource, write: Write
    ) -> None:
        with guard.acquire(resource), Session(engine) as session:
            bank.admit(resource, 2)
            with pytest.raises(StaleFenceError):
                write(session, account)

    def test_the_holder_may_write(
        self, guard: Guard, engine: Engine, bank: Bank, account, resource, write: Write
    ) -> None:
        before = bank.state(account)
        with guard.acquire(resource), Session(engine) as session:
            write(session, account)
            session.commit()
        assert bank.state(account) != before


async def test_an_async_copy_is_refused_without_a_lease_and_good_with_one(
    async_guard: AsyncGuard, async_engine, bank: Bank, account: int, resource: str
) -> None:
    async def copy_async(session: AsyncSession) -> None:
        connection = await session.connection()
        driver = (await connection.get_raw_connection()).driver_connection
        if hasattr(driver, "copy_records_to_table"):  # asyncpg
            columns = ("account_id", "amount")
            await driver.copy_records_to_table(
                "transfers", records=[(account, 77)], columns=columns
            )
            return
        async with (
            driver.cursor() as cursor,
            cursor.copy("COPY transfers (account_id, amount) FROM STDIN") as rows,
        ):
            await rows.write_row((account, 77))

    before = bank.state(account)
    async with AsyncSession(async_engine) as session:
        with pytest.raises((psycopg.Error, asyncpg.PostgresError)) as refusal:
            await copy_async(session)
        assert refusal.value.sqlstate == "ZF002"
        await session.rollback()
        assert bank.state(account) == before
        async with async_guard.acquire(resource):
            await copy_async(session)
            await session.commit()
    assert bank.state(account) != before


def test_one_row_of_another_resource_makes_a_copy_fail_as_a_whole(
    bank: Bank, connection: psycopg.Connection, account: int, resource: str
) -> None:
    other = bank.new_account()
    before = bank.state(account), bank.state(other)
    bank.admit(resource, 1, ALICE)
    enter_by_hand(connection, resource, 1, ALICE)
    with (  # noqa: PT012 - its end is meant
        pytest.raises(psycopg.Error) as refusal,
        connection.cursor() as cursor,
        cursor.copy("COPY transfers (account_id, amount) FROM STDIN") as rows,
    ):
        rows.write_row((account, 1))
        rows.write_row((other, 1))
    assert refusal.value.sqlstate == "ZF002"
    connection.rollback()
    assert (bank.state(account), bank.state(other)) == before


@pytest.mark.parametrize("mine", [True, False])
def test_moving_a_row_to_another_resource_needs_both_leases(
    bank: Bank, connection: psycopg.Connection, account: int, resource: str, *, mine: bool
) -> None:
    other = bank.new_account()
    bank.admit(resource, 1, ALICE)
    enter_by_hand(connection, resource, 1, ALICE)
    source, target = (account, other) if mine else (other, account)
    with pytest.raises(psycopg.Error) as refusal:
        connection.execute(
            "UPDATE transfers SET account_id = %s WHERE account_id = %s", (target, source)
        )
    assert refusal.value.sqlstate == "ZF002"
    assert f"account:{other}" in str(refusal.value)


def test_two_claims_cover_a_move_between_two_resources(
    bank: Bank, connection: psycopg.Connection, account: int, resource: str
) -> None:
    other = bank.new_account()
    for name in (resource, f"account:{other}"):
        bank.admit(name, 1, ALICE)
    both = " ".join(claim_item(f"account:{n}", 1, ALICE) for n in (account, other))
    connection.execute("SELECT fencing.enter(%s, NULL)", (both,))
    connection.execute(
        "UPDATE transfers SET account_id = %s WHERE account_id = %s", (other, account)
    )
    copy(connection, other)
    connection.commit()
    assert len(bank.state(other)[1]) == 5

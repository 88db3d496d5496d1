"""Whatever a role or a database has set, an admission is durable and READ COMMITTED."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from fencing import Guard
from fencing.hooks.database import Database

if TYPE_CHECKING:
    from tests.support.bank import Bank
    from tests.support.banking import MakeEngine
    from tests.support.scripted import ScriptedLocks


class TestSettingsOfTheRole:
    def set(self, bank: Bank, setting: str) -> None:
        bank.observer.execute(
            f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {setting}', "
            "current_database()); END $$".encode()
        )

    @pytest.mark.parametrize("level", ["serializable", "repeatable read"])
    def test_another_default_isolation_level_does_not_hinder_it(
        self, own_bank: Bank, make_engine: MakeEngine, locks: ScriptedLocks, level: str
    ) -> None:
        self.set(own_bank, f"default_transaction_isolation TO ''{level}''")
        engine = make_engine(own_bank.url)
        guard = Guard(locks, engine)
        for token in (1, 2, 3):
            with guard.acquire("account:1") as lease, engine.begin() as connection:
                assert own_bank.mark("account:1") == (token, lease.holder)
                assert connection.scalar(text("SHOW transaction_isolation")) == level
                connection.execute(text("UPDATE accounts SET balance = 1 WHERE id = 1"))
        own_bank.admit("account:2", 9)
        assert guard.acquire("account:2").token == 10, "a refusal is a refusal there, too"

    @pytest.mark.parametrize("level", ["read committed", "serializable"])
    def test_a_session_that_is_read_only_by_default_does_not_hinder_it(
        self, own_bank: Bank, make_engine: MakeEngine, locks: ScriptedLocks, level: str
    ) -> None:
        self.set(own_bank, f"default_transaction_isolation TO ''{level}''")
        self.set(own_bank, "default_transaction_read_only TO on")
        engine = make_engine(own_bank.url)
        writing = engine.execution_options(postgresql_readonly=False)
        with Guard(locks, engine).acquire("account:1") as lease, writing.begin() as connection:
            assert own_bank.mark("account:1") == (1, lease.holder)
            connection.execute(text("UPDATE accounts SET balance = 1 WHERE id = 1"))
        assert own_bank.balance(1) == 1

    @pytest.mark.parametrize("level", ["read committed", "serializable"])
    def test_one_that_waited_for_a_newer_one_sees_it(
        self, own_bank: Bank, make_engine: MakeEngine, locks: ScriptedLocks, level: str
    ) -> None:
        own_bank.admit("account:1", 1)
        self.set(own_bank, f"default_transaction_isolation TO ''{level}''")
        guard = Guard(locks, make_engine(own_bank.url))
        with ThreadPoolExecutor() as pool:
            with own_bank.admitting("account:1", 5):
                locks.tokens.append(3)
                acquiring = pool.submit(guard.acquire, "account:1")
                own_bank.wait_until_queued()
            assert acquiring.result(20).token == 6

    def test_it_is_durable_where_commits_are_not(
        self, own_bank: Bank, make_engine: MakeEngine, locks: ScriptedLocks
    ) -> None:
        # What was in force at the admission's own write.
        own_bank.observer.execute("CREATE TABLE durability (setting text)")
        own_bank.observer.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN "
            "INSERT INTO public.durability VALUES (current_setting('synchronous_commit')); "
            "RETURN NULL; END $$"
        )
        own_bank.observer.execute(
            "CREATE TRIGGER note AFTER INSERT OR UPDATE ON fencing.fence "
            "FOR EACH ROW EXECUTE FUNCTION note()"
        )
        self.set(own_bank, "synchronous_commit TO off")
        engine = make_engine(own_bank.url)
        guard = Guard(locks, engine)
        guard.acquire("account:1").release()
        guard.acquire("account:1")
        assert own_bank.value("SELECT array_agg(setting) FROM durability") == ["on", "on"]
        with engine.connect() as connection:
            assert connection.scalar(text("SHOW synchronous_commit")) == "off"

    def test_a_role_without_any_right_on_the_fence_can_be_guarded(
        self, own_bank: Bank, make_engine: MakeEngine, locks: ScriptedLocks
    ) -> None:
        role = f"clerk_{own_bank.value('SELECT current_database()')}"
        own_bank.observer.execute(f"CREATE ROLE {role} LOGIN".encode())
        try:
            own_bank.observer.execute(f"GRANT SELECT, UPDATE ON accounts TO {role}".encode())
            engine = make_engine(own_bank.url, connect_args={"options": f"-c role={role}"})
            with Guard(locks, engine).acquire("account:1"), engine.begin() as connection:
                assert connection.scalar(text("SELECT current_user")) == role
                connection.execute(text("UPDATE accounts SET balance = 1 WHERE id = 1"))
            assert own_bank.balance(1) == 1
        finally:
            own_bank.observer.execute(f"DROP OWNED BY {role}".encode())
            Database.of(engine).admissions.close()
            engine.dispose()
            own_bank.observer.execute(f"DROP ROLE {role}".encode())

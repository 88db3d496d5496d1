"""Which leases are in force where: blocks, threads, generators, suspensions."""

from __future__ import annotations

import contextvars
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from fencing import (
    Guard,
    LeaseExpiredError,
    LeaseLostError,
    LockNotAcquiredError,
    StaleFenceError,
    UnfencedWriteError,
    fence,
)
from tests.support.bank import Bank, presented
from tests.support.scripted import ScriptedLocks, expire

if TYPE_CHECKING:
    from collections.abc import Iterator


def seen(engine: Engine) -> dict[str, int]:
    """What a transaction begun here and now presents."""
    with engine.connect() as connection:
        return presented(connection)


class TestBlocks:
    def test_a_transaction_in_the_block_presents_the_lease(self, guard, engine, resource) -> None:
        with guard.acquire(resource):
            assert seen(engine) == {resource: 1}
        assert seen(engine) == {}

    def test_a_lease_is_ambient_in_its_block_only(self, guard, engine, resource) -> None:
        lease = guard.acquire(resource)
        assert seen(engine) == {}
        with lease:
            assert seen(engine) == {resource: 1}
        assert seen(engine) == {}

    def test_nested_blocks_present_both_and_an_inner_exit_frees_nothing(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        inner = f"{resource}:inner"
        with guard.acquire(resource) as outer:
            with guard.acquire(inner):
                assert seen(engine) == {resource: 1, inner: 2}
            assert seen(engine) == {resource: 1}
            assert not outer.released

    def test_blocks_may_be_closed_in_another_order(self, guard, engine, resource) -> None:
        first, second = guard.acquire("a" + resource), guard.acquire("b" + resource)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert list(seen(engine)) == ["b" + resource]
        second.__exit__(None, None, None)
        assert seen(engine) == {}

    def test_a_block_that_fails_is_closed(self, guard, engine, resource) -> None:
        with pytest.raises(ZeroDivisionError), guard.acquire(resource):
            raise ZeroDivisionError
        assert seen(engine) == {}

    def test_a_lease_has_one_block(self, guard, resource) -> None:
        with (
            guard.acquire(resource) as lease,
            pytest.raises(Exception, match="has had its with block"),
        ):
            lease.__enter__()

    def test_the_same_resource_twice_is_raised_at_once(
        self, guard: Guard, locks: ScriptedLocks, resource: str
    ) -> None:
        with guard.acquire(resource):
            with pytest.raises(LockNotAcquiredError, match="wait for itself") as refusal:
                guard.acquire(resource)
            assert refusal.value.resource == resource
            assert guard.try_acquire(resource) is None
            assert locks.count("acquire") == 1
        assert guard.acquire(resource).token == 2

    def test_another_thread_may_ask_for_it(self, guard, resource) -> None:
        with guard.acquire(resource), ThreadPoolExecutor() as pool:
            assert pool.submit(guard.acquire, resource).result(20).token == 2

    def test_a_transaction_begun_before_the_block_is_not_covered_and_says_so(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        with Session(engine) as session:
            assert presented(session) == {}
            with guard.acquire(resource):
                with pytest.raises(UnfencedWriteError, match="began before the lease"):
                    session.execute(text(f"UPDATE accounts SET balance = 0 WHERE id = {account}"))
                session.rollback()
                assert presented(session) == {resource: 1}
                session.rollback()
        assert bank.balance(account) == 100


class TestThreadsAndContexts:
    def test_a_thread_started_in_the_block_presents_nothing(self, guard, engine, resource) -> None:
        found = []
        with guard.acquire(resource):
            thread = threading.Thread(target=lambda: found.append(seen(engine)))
            thread.start()
            thread.join()
        assert found == [{}]

    def test_a_pool_of_threads_presents_nothing(self, guard, engine, resource) -> None:
        with guard.acquire(resource), ThreadPoolExecutor() as pool:
            assert pool.submit(seen, engine).result(20) == {}

    def test_a_copy_of_the_context_presents_it_until_the_block_ends(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        with guard.acquire(resource), ThreadPoolExecutor() as pool:
            context = contextvars.copy_context()
            assert pool.submit(context.run, seen, engine).result(20) == {resource: 1}
        assert context.run(seen, engine) == {}

    def test_a_block_may_be_left_in_another_context(self, guard, engine, resource) -> None:
        lease = guard.acquire(resource)
        contextvars.copy_context().run(lease.__enter__)
        assert seen(engine) == {}
        contextvars.copy_context().run(lease.__exit__, None, None, None)
        assert lease.released

    def test_leases_of_two_threads_do_not_mix(self, guard, engine, resource) -> None:
        def work(name: str) -> dict[str, int]:
            with guard.acquire(name):
                barrier.wait(20)
                return seen(engine)

        barrier = threading.Barrier(2)
        with ThreadPoolExecutor() as pool:
            names = [f"{resource}:a", f"{resource}:b"]
            results = list(pool.map(work, names))
        assert [list(found) for found in results] == [[name] for name in names]

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_a_forked_child_owns_nothing_of_its_parent(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        def admission_backend() -> int:
            with guard.databases[0].admissions.engine.connect() as connection:
                return connection.scalar(text("SELECT pg_backend_pid()"))

        with guard.acquire(resource) as lease:
            of_the_parent = admission_backend()
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    engine.dispose(close=False)
                    assert seen(engine) == {}
                    assert lease.lost
                    lease.release()
                    with (
                        pytest.raises(LeaseLostError, match="forked child"),
                        engine.connect() as connection,
                        fence(connection, lease),
                    ):
                        connection.begin()
                    assert guard.acquire(f"{resource}:child").admitted
                    assert admission_backend() != of_the_parent
                    code = 0
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert not lease.released
            assert admission_backend() == of_the_parent
            assert seen(engine) == {resource: 1}

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
    def test_an_open_transaction_of_the_parent_does_not_keep_its_child_from_acquiring(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        presentations = guard.databases[0].presentations
        with guard.acquire(resource) as lease, engine.connect() as connection:
            connection.execute(text("SELECT 1"))
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    engine.dispose(close=False)
                    assert list(presentations.open_on(resource)) == []
                    code = 0
                finally:
                    os._exit(code)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 0
            assert [found for _, found in presentations.open_on(resource)] == [lease]


class TestGenerators:
    def test_a_generator_leaks_its_lease_only_while_it_is_open(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        def batches() -> Iterator[dict[str, int]]:
            with guard.acquire(resource):
                yield seen(engine)
                yield seen(engine)

        generator = batches()
        assert next(generator) == {resource: 1}
        assert next(generator) == {resource: 1}
        generator.close()
        assert seen(engine) == {}

    def test_a_helper_made_with_contextmanager_works(self, guard, engine, resource) -> None:
        @contextmanager
        def unit_of_work() -> Iterator[Session]:
            with guard.acquire(resource), Session(engine) as session:
                yield session
                session.commit()

        with unit_of_work() as session:
            assert presented(session) == {resource: 1}
        assert seen(engine) == {}

    def test_an_exit_stack_works(self, guard, engine, resource) -> None:
        with ExitStack() as stack:
            stack.enter_context(guard.acquire(resource))
            assert seen(engine) == {resource: 1}
        assert seen(engine) == {}


class TestSuspended:
    def test_nothing_is_presented_in_it(self, guard, engine, resource) -> None:
        with guard.acquire(resource):
            with guard.suspended():
                assert seen(engine) == {}
                with guard.suspended():
                    assert seen(engine) == {}
                assert seen(engine) == {}
            assert seen(engine) == {resource: 1}

    def test_a_lease_acquired_in_it_is_presented(self, guard, engine, resource) -> None:
        with guard.acquire(resource), guard.suspended(), guard.acquire(f"{resource}:in"):
            assert seen(engine) == {f"{resource}:in": 2}

    def test_an_explicit_fence_opened_before_it_is_hidden_and_one_in_it_is_not(
        self, guard: Guard, engine: Engine, resource: str
    ) -> None:
        lease = guard.acquire(resource)
        with engine.connect() as connection:
            with fence(connection, lease):
                with guard.suspended():
                    assert presented(connection) == {}
                    connection.rollback()
                assert presented(connection) == {resource: 1}
                connection.rollback()
            with guard.suspended(), fence(connection, lease):
                assert presented(connection) == {resource: 1}

    def test_a_guarded_write_in_it_is_refused_and_says_why(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str
    ) -> None:
        with (
            guard.acquire(resource),
            guard.suspended(),
            Session(engine) as session,
            pytest.raises(UnfencedWriteError, match="suspended"),
        ):
            session.execute(text(f"UPDATE accounts SET balance = 0 WHERE id = {account}"))
        assert bank.balance(account) == 100

    @pytest.mark.parametrize("loss", [LeaseExpiredError, StaleFenceError])
    def test_an_error_handler_can_write_what_is_not_guarded(
        self, guard: Guard, engine: Engine, bank: Bank, account: int, resource: str, loss: type
    ) -> None:
        with guard.acquire(resource) as lease, Session(engine) as session:
            if loss is LeaseExpiredError:
                expire(lease)
            else:
                bank.admit(resource, 2)
            try:
                session.execute(text(f"UPDATE accounts SET balance = 0 WHERE id = {account}"))
                pytest.fail("it was not refused")
            except loss:
                session.rollback()
                with pytest.raises(LeaseLostError):
                    session.execute(text("INSERT INTO notes (note) VALUES ('no')"))
                session.rollback()
                with guard.suspended():
                    session.execute(
                        text("INSERT INTO notes (note) VALUES (:n)"), {"n": f"lost {account}"}
                    )
                    session.commit()
        assert bank.notes(f"lost {account}") == 1
        assert bank.balance(account) == 100

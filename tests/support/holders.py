"""Lock holders to run in processes of their own; see `tests.support.processes`."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from fencing import FencingError, Guard, Lease, connect
from tests.support.bank import Account, before_each_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.child import Parent

NO_LIMITS = text(
    "SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ("
    "'idle_in_transaction_session_timeout', 'statement_timeout', 'transaction_timeout', "
    "'tcp_user_timeout')"
)


ADD = text("UPDATE accounts SET balance = balance + :amount WHERE id = :id")

LARGE_RESULT = text("SELECT repeat('x', 1000) FROM generate_series(1, 500000)")  # 500 MB


@contextmanager
def guarding(redis_url: str, namespace: str, url: str) -> Iterator[tuple[Guard, Engine]]:
    """A guard over the real services, closed at the end; a lock service of any kind."""
    engine = create_engine(url)
    settings = {"namespace": namespace} if namespace else {}
    with Guard(connect(redis_url, **settings), engine) as guard:
        yield guard, engine
    engine.dispose()


def warm_up(engine: Engine, account: int) -> None:
    """Connect, and map: nothing of which a short lease has to last for."""
    with Session(engine) as session:
        session.get_one(Account, account)


def zombie(
    parent: Parent, redis_url: str, namespace: str, url: str, account: int, ttl: float, how: str
) -> None:
    """Opens a transaction under a lease, is stopped in it, and goes on in the way ``how`` says.

    Reports "open" and waits for "go on"; "past the check" it does so only after its own deadline
    has been checked, when the next message is as good as sent. Then it reports "refused" or "done".
    """
    with ExitStack() as stack:
        guard, engine = stack.enter_context(guarding(redis_url, namespace, url))
        warm_up(engine, account)
        lease = stack.enter_context(
            guard.acquire(f"account:{account}", ttl=ttl, keepalive="kept" in how)
        )
        session = stack.enter_context(Session(engine))
        row = session.get_one(Account, account)
        row.balance = 0
        session.flush()
        pid = session.scalar(text("SELECT pg_backend_pid()"))
        if "many" in how:
            session.execute(ADD, [{"id": account, "amount": n} for n in (1, 2)])
        if "unlimited" in how:
            session.execute(NO_LIMITS)

        def stop(*_: object) -> None:
            parent.report("open", pid=pid, token=lease.token)
            parent.wait_for("go on")

        if "past the check" in how:
            event.listen(engine, "commit", stop)
            event.listen(engine, "before_cursor_execute", stop)
        elif "busy" in how or "receiving" in how:
            parent.report("open", pid=pid, token=lease.token)
        else:
            stop()
        if "receiving" in how:
            attempt(parent, lambda: session.execute(LARGE_RESULT), lease)
        elif "busy" in how:
            attempt(parent, lambda: session.execute(text("SELECT pg_sleep(60)")), lease)
        elif "statement" in how:
            attempt(parent, lambda: session.execute(text("SELECT 1")), lease)
        else:
            attempt(parent, session.commit, lease)


def attempt(parent: Parent, act: Callable[[], object], lease: Lease) -> None:
    """Do something, and report how it went."""
    try:
        act()
    except (FencingError, DBAPIError) as error:
        parent.report(
            "refused", error=type(error).__name__, lost=lease.lost,
            current_token=getattr(error, "current_token", None),
        )  # fmt: skip
    else:
        parent.report("done")


def writes_what_it_computed(
    parent: Parent, redis_url: str, namespace: str, url: str, account: int, ttl: float
) -> None:
    """Writes in a second transaction what it computed in its first; stopped before its entry."""
    with ExitStack() as stack:
        guard, engine = stack.enter_context(guarding(redis_url, namespace, url))
        warm_up(engine, account)
        lease = stack.enter_context(guard.acquire(f"account:{account}", ttl=ttl))
        session = stack.enter_context(Session(engine))
        computed = session.get_one(Account, account).balance - 1
        session.rollback()

        def stop(_connection: object) -> None:
            parent.report("about to enter")
            parent.wait_for("go on")

        def write() -> None:
            session.get_one(Account, account).balance = computed
            session.commit()

        with before_each_entry(stop):
            attempt(parent, write, lease)


def increments(
    parent: Parent, redis_url: str, namespace: str, url: str, account: int, times: int
) -> None:
    """Adds 1 so many times; any error ends the process."""
    with guarding(redis_url, namespace, url) as (guard, engine):
        parent.report("ready")
        parent.wait_for("go")
        for _ in range(times):
            with (
                guard.acquire(f"account:{account}", ttl=30) as lease,
                Session(engine) as session,
            ):
                session.get_one(Account, account).balance += 1
                session.commit()
            assert not lease.lost
        parent.report("finished")

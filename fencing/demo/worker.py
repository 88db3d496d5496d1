"""The program of A and B: for each order on standard input, withdraw from an account.

::

    python -m fencing.demo.worker

An order is a line of JSON (:class:`Order`). What happens is reported on standard output, a line of
JSON each: ``event``, ``at`` (seconds of :func:`fencing.clock.now`, which all processes of a machine
share), and facts. The process ends with its input.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy import Engine, create_engine, event, update
from sqlalchemy.orm import Session

from fencing import FencingError, Guard, Lease, LeaseLostError, RedisLockService
from fencing.clock import now
from fencing.demo.bank import RESOURCE, Account

if TYPE_CHECKING:
    from sqlalchemy.pool import ConnectionPoolEntry

__all__ = ["Order", "Place"]

Place = Literal["", "read", "entry"]
"""Where to stop: nowhere, after the read, or between the deadline check and the entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One withdrawal.

    Attributes:
        redis_url: Where the lock service is.
        namespace: What its keys begin with.
        database_url: SQLAlchemy's address of the database.
        guarded: Whether to use a ``Guard``, or the lock alone.
        account: Number of the account.
        amount: How much to withdraw.
        owner: The lease's label.
        ttl: Length of the lease, in seconds.
        patience: Longest wait for the lease, in seconds.
        stop_at: Where to stop.
    """

    redis_url: str
    namespace: str
    database_url: str
    guarded: bool
    account: int
    amount: int
    owner: str
    ttl: float
    patience: float
    stop_at: Place = ""


class Parent:
    """Who has started this process, and hears what happens.

    Args:
        output: The file descriptor to report to.
    """

    def __init__(self, output: int) -> None:
        self._output = output

    def report(self, name: str, **facts: object) -> None:
        """Say that something has happened."""
        line = json.dumps({"event": name, "at": now(), **facts})
        os.write(self._output, line.encode() + b"\n")

    def stop_here(self, **facts: object) -> None:
        """Stop this process, as a debugger or a full machine would; returns when it is continued.

        By itself, because a signal from outside could come a little later than meant.
        """
        self.report("stopping", **facts)
        os.kill(os.getpid(), signal.SIGSTOP)


class Sendings:
    """What an engine's driver is about to send: counts it, and can stop before an entry.

    BEGIN and entry go in one message, which is none of SQLAlchemy's statements; so this listens to
    the driver. An entry is made after the deadline was checked, and sent when the driver begins to
    wait for the answer: stopping there is stopping between the two.
    """

    def __init__(self, engine: Engine, parent: Parent) -> None:
        self.count = 0
        self.stop_before_entry_of: Lease | None = None
        self._parent = parent
        event.listen(engine, "connect", self._listen_to)

    def _listen_to(self, _dbapi: object, record: ConnectionPoolEntry) -> None:
        driver: Any = record.driver_connection
        send_and_wait = driver.wait

        def wait(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401 - psycopg's
            self._stop_if_asked()
            try:
                return send_and_wait(*arguments, **options)
            finally:
                if driver.info.transaction_status.name != "IDLE":  # it was no ROLLBACK
                    self.count += 1

        driver.wait = wait

    def _stop_if_asked(self) -> None:
        lease = self.stop_before_entry_of
        if lease is not None:
            self.stop_before_entry_of = None
            self._parent.stop_here(remaining=lease.remaining)


def carry_out(order: Order, parent: Parent) -> None:
    """Withdraw, and report how it went."""
    with ExitStack() as stack:
        locks = stack.enter_context(
            RedisLockService.from_url(order.redis_url, namespace=order.namespace)
        )
        engine = create_engine(order.database_url)
        stack.callback(engine.dispose)
        locker = stack.enter_context(Guard(locks, engine)) if order.guarded else locks
        sendings = Sendings(engine, parent)
        engine.connect().close()  # so that a lease is not spent on connecting
        try:
            withdraw(order, locker, engine, parent, sendings)
        except LeaseLostError as error:
            # A plain lock tells at its end that it had been lost: after the fact.
            parent.report("released", error=type(error).__name__)
        except Exception as error:  # noqa: BLE001 - the parent decides what to do about it
            parent.report("failed", error=type(error).__name__, message=str(error))
    parent.report("done")


def withdraw(
    order: Order,
    locker: Guard | RedisLockService,
    engine: Engine,
    parent: Parent,
    sendings: Sendings,
) -> None:
    """Read in one transaction, write in another, both under a lease."""
    parent.report("asks")
    with locker.acquire(
        RESOURCE.format(id=order.account),
        ttl=order.ttl,
        blocking_timeout=order.patience,
        owner=order.owner,
    ) as lease:
        parent.report("acquired", token=lease.token)
        try:
            with Session(engine) as session, session.begin():
                balance = session.get_one(Account, order.account).balance
            parent.report("read", balance=balance)

            if order.stop_at == "entry":
                sendings.stop_before_entry_of = lease
            elif order.stop_at == "read":
                parent.stop_here()

            sendings.count = 0
            with Session(engine) as session, session.begin():
                session.execute(
                    update(Account)
                    .where(Account.id == order.account)
                    .values(balance=balance - order.amount)
                )
        except FencingError as error:
            parent.report("refused", sent=sendings.count, **description(error))
            return
        parent.report("wrote", before=balance, amount=order.amount, after=balance - order.amount)
    parent.report("released")


def description(error: FencingError) -> dict[str, str | None]:
    """An error, and what the database has answered if it was that which refused."""
    refusal = error.__cause__
    return {
        "error": type(error).__name__,
        "message": str(error),
        "sqlstate": getattr(refusal, "sqlstate", None),
        "answer": getattr(getattr(refusal, "diag", None), "message_primary", None),
    }


def main() -> None:
    """Carry out orders until there are no more."""
    parent = Parent(os.dup(1))
    os.dup2(2, 1)  # whatever is printed must not come between the reports
    for line in sys.stdin:
        carry_out(Order(**json.loads(line)), parent)


if __name__ == "__main__":
    main()

"""A database and Redis keys of the demonstration's own.

Fences cannot be removed from a database, so the demonstration works in one that it creates on the
server it is given and drops afterwards; the user's own stays as it is.
"""

from __future__ import annotations

import secrets
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

import redis
from sqlalchemy import Engine, insert, select, text, update
from sqlalchemy.exc import DBAPIError

from fencing.clock import now
from fencing.demo.bank import OPENING_BALANCE, RESOURCE, WITHDRAWALS, Account, Base
from fencing.demo.process import DemonstrationError
from fencing.demo.worker import Order
from fencing.locks.redis.scripts import keys_of
from fencing.locks.redis.trouble import trouble_of
from fencing.migration import install
from fencing.migration.connecting import engine_at, read_url
from fencing.schema import ddl

if TYPE_CHECKING:
    from types import TracebackType

    from fencing.demo.worker import Place

__all__ = ["ACCOUNTS", "Stage"]

ACCOUNTS = range(1, 25)
"""Numbers of the accounts; every performance of an act has one to itself."""

_NOT_ALLOWED = "42501"

_END_SESSIONS = text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
    "WHERE datname = :name AND usename = current_user"
)


class Stage:
    """Where the acts are played; a context manager that leaves no trace.

    Args:
        redis_url: A Redis.
        database_url: A database on a PostgreSQL server, whose user may create others.

    Attributes:
        name: Of the database, and what the keys in Redis begin with.
        engine: Engine of the database, without a guard.

    Raises:
        DemonstrationError: A server cannot be used.
        ValueError: An address is none.
    """

    def __init__(self, redis_url: str, database_url: str) -> None:
        self.name = f"fencing_demo_{secrets.token_hex(8)}"
        server_url = read_url(database_url)
        self._redis_url = redis_url
        self._redis = redis.Redis.from_url(redis_url)
        url = server_url.set(database=self.name)
        self._database_url = url.render_as_string(hide_password=False)
        # Without a pool: whoever drops the database finds no connection of ours.
        self.engine: Engine = engine_at(url)
        self._server = engine_at(server_url).execution_options(isolation_level="AUTOCOMMIT")
        self._clean_up = ExitStack()

    def __enter__(self) -> Self:
        with self._clean_up:
            self._clean_up.callback(self._redis.close)
            self._open_redis()
            self._create_database()
            with self.engine.begin() as connection:
                Base.metadata.create_all(connection)
                opening = [{"id": number, "balance": OPENING_BALANCE} for number in ACCOUNTS]
                connection.execute(insert(Account), opening)
            self._clean_up = self._clean_up.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clean_up.close()

    def guard(self) -> None:
        """Install schema ``fencing`` and guard the table, as a migration would."""
        with self.engine.begin() as connection:
            install(connection)
            for statement in ddl.fence_table(Account.__tablename__, resource=RESOURCE):
                connection.exec_driver_sql(statement)

    def order(
        self,
        who: str,
        account: int,
        *,
        guarded: bool,
        ttl: float,
        patience: float,
        stop_at: Place = "",
    ) -> Order:
        """The withdrawal that A or B is to make; see :class:`~fencing.demo.worker.Order`."""
        return Order(
            redis_url=self._redis_url,
            namespace=self.name,
            database_url=self._database_url,
            guarded=guarded,
            account=account,
            amount=WITHDRAWALS[who],
            owner=who,
            ttl=ttl,
            patience=patience,
            stop_at=stop_at,
        )

    def balance(self, account: int) -> int:
        """What is left on an account."""
        with self.engine.connect() as connection:
            statement = select(Account.balance).where(Account.id == account)
            balance: int = connection.execute(statement).scalar_one()
            return balance

    def write_without_lease(self, account: int) -> tuple[str, str] | None:
        """Try what any other program could: a plain UPDATE, which is rolled back.

        Returns:
            The SQLSTATE and the message of the refusal; ``None`` if nobody has refused.
        """
        with self.engine.connect() as connection:
            try:
                connection.execute(update(Account).where(Account.id == account).values(balance=0))
            except DBAPIError as error:
                return _said(error)
            finally:
                connection.rollback()
        return None

    def _open_redis(self) -> None:
        try:
            self._redis.ping()
        except redis.RedisError as error:
            told = trouble_of(error, at=now()).help
            raise DemonstrationError(f"cannot use Redis: {told}") from error
        self._clean_up.callback(self._delete_keys)

    def _delete_keys(self) -> None:
        # A Redis that has gone away meanwhile has nothing that we could delete.
        with suppress(redis.RedisError):
            for account in ACCOUNTS:
                self._redis.delete(*keys_of(self.name, RESOURCE.format(id=account)))

    def _create_database(self) -> None:
        try:
            with self._server.connect() as connection:
                # Now, or a Ctrl-C could come between; not before, since a server that cannot be
                # reached has nothing to drop.
                self._clean_up.callback(self._drop_database)
                connection.exec_driver_sql(f"CREATE DATABASE {self.name} TEMPLATE template0")
        except DBAPIError as error:
            sqlstate, message = _said(error)
            if sqlstate == _NOT_ALLOWED:
                raise DemonstrationError(
                    f"the demonstration needs a database of its own, and this user may not create "
                    f"one: {message}. Choose another user, or give no database URL: then it runs "
                    "on an embedded server"
                ) from error
            raise DemonstrationError(f"cannot use PostgreSQL: {message}") from error

    def _drop_database(self) -> None:
        try:
            with self._server.connect() as connection:
                # A killed worker's session may take a moment to end. WITH (FORCE) would end it, but
                # fail if autovacuum is there, whose process belongs to a superuser; without, the
                # server sends autovacuum away by itself, and waits for both.
                connection.execute(_END_SESSIONS, {"name": self.name})
                connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {self.name}")
        except DBAPIError as error:
            raise DemonstrationError(
                f"could not drop the demonstration's database, {self.name}: {_said(error)[1]}"
            ) from error


def _said(error: DBAPIError) -> tuple[str, str]:
    """SQLSTATE and message of the server, or what the driver says for it."""
    diagnosis = getattr(error.orig, "diag", None)
    message = getattr(diagnosis, "message_primary", None) or str(error.orig).partition("\n")[0]
    return getattr(error.orig, "sqlstate", None) or "", message

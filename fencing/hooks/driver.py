"""What the driver knows of a connection, where SQLAlchemy does not ask, or believes otherwise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sqlalchemy import Connection

__all__ = ["driver_of", "has_failed", "is_idle"]

# libpq's PGTransactionStatusType.
_IDLE, _IN_ERROR = 0, 3


def driver_of(connection: Connection) -> Any:  # noqa: ANN401 - psycopg's, sync or async
    """The driver's own connection, also of one that was detached from its pool."""
    dbapi: Any = connection.connection.dbapi_connection
    return connection.dialect.get_driver_connection(dbapi)


def is_idle(driver: Any) -> bool:  # noqa: ANN401
    """Whether no transaction is open on a driver's connection."""
    return bool(driver.closed) or driver.info.transaction_status == _IDLE


def has_failed(driver: Any) -> bool:  # noqa: ANN401
    """Whether its transaction can only be rolled back."""
    return not driver.closed and driver.info.transaction_status == _IN_ERROR

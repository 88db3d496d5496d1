"""How workers connect, and how rows are executed on what they have connected."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sqlalchemy import text

from fencing.schema.names import CLAIM_SETTING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from fencing.torture.settings import Plan

__all__ = ["LEAK", "asyncpg_options", "executing", "libpq_url", "psycopg_options", "without_scheme"]

CONNECT_TIMEOUT = 5

LEAK = f"SELECT set_config('{CLAIM_SETTING}', current_setting('{CLAIM_SETTING}'), false)"
"""Leaves the claim of a transaction in its connection's session."""


def psycopg_options(plan: Plan) -> dict[str, Any]:
    """What psycopg is told when it connects."""
    options: dict[str, Any] = {"connect_timeout": CONNECT_TIMEOUT}
    return {**options, "prepare_threshold": None} if plan.pooled else options


def asyncpg_options(plan: Plan) -> dict[str, Any]:
    """What asyncpg is told when it connects."""
    options: dict[str, Any] = {"timeout": CONNECT_TIMEOUT}
    unprepared = {"statement_cache_size": 0, "prepared_statement_cache_size": 0}
    return {**options, **unprepared} if plan.pooled else options


def libpq_url(url: str) -> str:
    """An address for libpq."""
    return f"postgresql{without_scheme(url)}"


def without_scheme(url: str) -> str:
    """An address from its ``://`` on."""
    return re.sub(r"^\w+(\+\w+)?", "", url)


def executing(connection: Connection) -> Callable[[str, dict[str, Any]], Sequence[Any]]:
    """What executes a statement on a connection of SQLAlchemy's; see `SqlRows`."""

    def execute(statement: str, parameters: dict[str, Any]) -> Sequence[Any]:
        result = connection.execute(text(statement), parameters)
        return result.all() if result.returns_rows else ()

    return execute

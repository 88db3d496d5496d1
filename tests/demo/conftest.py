"""Servers that only this test's demonstration uses, and the demonstration as a process."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

import psycopg
import pytest
import redis
from psycopg import sql
from sqlalchemy.engine import make_url

from tests.support.databases import plain_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fencing.embedded import ValkeyProcess


@dataclass(frozen=True)
class Servers:
    redis_url: str
    database_url: str  # of a role of this test's own, so that its databases can be told
    admin_url: str
    role: str

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FENCING_REDIS_URL": self.redis_url,
            "FENCING_DATABASE_URL": self.database_url,
        }

    def databases(self) -> list[str]:
        with psycopg.connect(self.admin_url) as connection:
            rows = connection.execute(
                "SELECT datname FROM pg_database WHERE pg_get_userbyid(datdba) = %s", [self.role]
            )
            return [name for (name,) in rows]

    def drop_databases(self) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            for name in self.databases():
                statement = sql.SQL("DROP DATABASE {} WITH (FORCE)")
                connection.execute(statement.format(sql.Identifier(name)))

    def keys(self) -> list[bytes]:
        with redis.Redis.from_url(self.redis_url) as client:
            return client.keys()

    def start_demo(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fencing.cli.main", "demo", *arguments],
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def run_demo(self, *arguments: str) -> tuple[int, str, str]:
        with self.start_demo(*arguments) as process:
            output, errors = process.communicate()
        return process.returncode, output, errors


@pytest.fixture
def servers(database_url: str, own_valkey: ValkeyProcess) -> Iterator[Servers]:
    admin_url = plain_url(database_url)
    role = f"customer_{uuid.uuid4().hex}"
    name = sql.Identifier(role)
    with psycopg.connect(admin_url, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN CREATEDB PASSWORD 'secret'").format(name))
        url = make_url(database_url).set(username=role, password="secret")
        try:
            yield Servers(
                own_valkey.url, url.render_as_string(hide_password=False), admin_url, role
            )
        finally:
            # Fails while the role owns anything: one more look for leftovers.
            connection.execute(sql.SQL("DROP ROLE {}").format(name))

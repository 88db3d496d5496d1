"""Fresh databases on one server, by copying a template."""

from __future__ import annotations

import contextlib
import uuid
from typing import TYPE_CHECKING

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType
    from typing import Self


class DatabaseFactory:
    """Makes databases and drops them again.

    Args:
        server_url: SQLAlchemy address of a database on the server, whose user may create others.
    """

    def __init__(self, server_url: str) -> None:
        self._url = make_url(server_url)
        self._templates: dict[Callable[[str], object], str] = {}
        self._stack = contextlib.ExitStack()
        self._connection = self._stack.enter_context(
            psycopg.connect(plain_url(server_url), autocommit=True)
        )

    @contextlib.contextmanager
    def empty(self) -> Iterator[str]:
        """Make an empty database.

        Yields:
            Its address, for SQLAlchemy.
        """
        with self._copy_of("template0") as name:
            yield self._address(name)

    @contextlib.contextmanager
    def prepared(self, prepare: Callable[[str], object]) -> Iterator[str]:
        """Make a database in which something has been done; it is done once, then copied.

        Args:
            prepare: Does it, given the database's address for SQLAlchemy, and stays connected to
                nothing.

        Yields:
            Its address, for SQLAlchemy.
        """
        if prepare not in self._templates:
            template = self._stack.enter_context(self._copy_of("template0"))
            prepare(self._address(template))
            self._templates[prepare] = template
        with self._copy_of(self._templates[prepare]) as name:
            yield self._address(name)

    @contextlib.contextmanager
    def fenced(self) -> Iterator[str]:
        """Make a database with schema ``fencing``.

        Yields:
            Its address, for SQLAlchemy.
        """
        from fencing.migration import install

        with self.prepared(install) as url:
            yield url

    @contextlib.contextmanager
    def _copy_of(self, template: str) -> Iterator[str]:
        name = f"test_{uuid.uuid4().hex}"
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)
        try:
            yield name
        finally:
            # Sessions that a test has killed or left open must not keep it.
            self._execute("DROP DATABASE {} WITH (FORCE)", name)

    def _address(self, name: str) -> str:
        return self._url.set(database=name).render_as_string(hide_password=False)

    def _execute(self, statement: str, *names: str) -> None:
        self._connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()


def plain_url(url: str) -> str:
    """Turn SQLAlchemy's address of a database into one for psycopg itself."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)

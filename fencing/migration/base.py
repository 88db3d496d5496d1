"""What the operations of this package have in common."""

from __future__ import annotations

from typing import Any, Self

from alembic.operations import MigrateOperation

__all__ = ["Call", "FencingOperation"]

Call = tuple[str, tuple[str, ...], dict[str, Any]]
"""Name, positional arguments, and keyword arguments without those that are defaults."""


class FencingOperation(MigrateOperation):
    """An operation that knows how it is written in a migration."""

    def __new__(cls, *_: object, **__: object) -> Self:  # noqa: D102 - a constructor
        # Renderers cannot be registered any earlier: a plugin is loaded while Alembic itself is
        # being imported. And nobody can render an operation who has not made it.
        from fencing.migration.rendering import register  # noqa: PLC0415 - as said above

        register()
        return super().__new__(cls)

    def call(self) -> Call:
        """How a migration says this."""
        raise NotImplementedError

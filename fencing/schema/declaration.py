"""What is declared of a table, and where the declaration lives.

``fenced_by`` writes it; the hooks, ``metadata.create_all()`` and Alembic's autogenerate read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fencing.schema.template import Template

__all__ = ["INFO_KEY", "Declaration", "declaration_of"]

INFO_KEY = "fencing"
"""The key in ``Table.info``."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What ``fenced_by`` has declared of a table.

    Attributes:
        template: Names the resource of a row.
        operations: What needs the lease, of ``"insert"``, ``"update"`` and ``"delete"``.
        mode: ``"enforce"``: a write without the lease is refused; ``"observe"``: it is reported.
    """

    template: Template
    operations: tuple[str, ...]
    mode: str = "enforce"


def declaration_of(table: object) -> Declaration | None:
    """What ``fenced_by`` has declared of a table, if anything."""
    declaration = getattr(table, "info", {}).get(INFO_KEY)
    return declaration if isinstance(declaration, Declaration) else None

"""What metadata declares, in the words of a verification."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fencing.schema.declaration import declaration_of

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Declared", "declared_in"]


@dataclass(frozen=True, slots=True)
class Declared:
    """A table that ``fenced_by`` declares.

    Attributes:
        table: Its name, unquoted.
        schema: Its schema, unquoted; ``None``: found by the search_path.
        resource: The resource template.
        operations: What needs the lease.
        mode: ``"enforce"`` or ``"observe"``.
    """

    table: str
    schema: str | None
    resource: str
    operations: tuple[str, ...]
    mode: str


def declared_in(*metadata: Any) -> list[Declared]:  # noqa: ANN401 -- without importing SQLAlchemy
    """Every declaration in some ``MetaData``, or in what has such an attribute: a base class.

    Raises:
        TypeError: One of them is neither.
    """
    return [
        Declared(
            table=table.name,
            schema=table.schema,
            resource=declaration.template.source,
            operations=declaration.operations,
            mode=declaration.mode,
        )
        for each in metadata
        for table in _tables(each)
        if (declaration := declaration_of(table)) is not None
    ]


def _tables(source: Any) -> Iterable[Any]:  # noqa: ANN401 -- as above
    tables = getattr(getattr(source, "metadata", source), "tables", None)
    if not hasattr(tables, "values"):
        raise TypeError(
            "declarations are in a MetaData, or in a declarative base class, which has one; not in "
            f"{source!r}"
        )
    return tables.values()  # type: ignore[no-any-return, union-attr]  # it has them, as just seen

"""What autogenerate is to leave alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fencing.migration.environment import VERSION_TABLE
from fencing.schema.names import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable

    # As loose as Alembic's own type is narrow: both must fit where the other is wanted.
    IncludeObject = Callable[[Any, Any, Any, bool, Any], bool]

__all__ = ["include_name", "include_object", "including", "is_ours"]


def is_ours(schema: str | None, table: str | None) -> bool:
    """Whether a table belongs to this package; the version table may be in any schema."""
    return schema == SCHEMA or table == VERSION_TABLE


def include_object(
    item: Any,  # noqa: ANN401 -- Alembic's signature
    name: str | None,
    type_: str,
    reflected: bool,  # noqa: FBT001 -- likewise
    compare_to: Any,  # noqa: ANN401 -- likewise
) -> bool:
    """Whether an object is none of this package's: for ``context.configure(include_object=...)``.

    Without it, autogenerate drops what it finds in the database and not in the metadata: the
    table ``fencing_version``, and with ``include_schemas=True`` schema ``fencing``.

    Args:
        item: A table, or what belongs to one.
        name: Its name.
        type_: ``"table"``, ``"column"``, ``"index"`` and so on.
        reflected: Whether it was found in the database.
        compare_to: Its counterpart on the other side, if there is one.
    """
    del name, reflected, compare_to
    table = item if type_ == "table" else getattr(item, "table", None)
    if table is None:
        return True
    return not is_ours(table.schema, table.name)


def include_name(name: str | None, type_: str, parent_names: Any) -> bool:  # noqa: ANN401 -- Alembic's signature
    """The same by name, for ``context.configure(include_name=...)``: nothing of ours is read.

    Args:
        name: Name of a schema, a table or something in one.
        type_: ``"schema"``, ``"table"``, ``"column"`` and so on.
        parent_names: The names of what it belongs to.
    """
    schema = name if type_ == "schema" else parent_names.get("schema_name")
    table = name if type_ == "table" else parent_names.get("table_name")
    return not is_ours(schema, table)


def including(own: IncludeObject) -> IncludeObject:
    """One filter out of :func:`include_object` and one of your own.

    Args:
        own: A filter as Alembic takes it; asked about everything that is not this package's.

    Returns:
        A filter for ``context.configure(include_object=...)``.
    """

    def both(item: Any, name: str | None, type_: str, reflected: bool, compare_to: Any) -> bool:  # noqa: ANN401, FBT001 -- Alembic's signature
        return include_object(item, name, type_, reflected, compare_to) and own(
            item, name, type_, reflected, compare_to
        )

    return both

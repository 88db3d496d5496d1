"""Declaring which lease a table's rows need."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Column, Table, inspect
from sqlalchemy import types as sqltypes
from sqlalchemy.dialects.postgresql import CITEXT, DOMAIN
from sqlalchemy.exc import NoInspectionAvailable
from sqlalchemy.orm import Mapper

import fencing.hooks.create  # noqa: F401 -- makes create_all() and drop_all() act on declarations
from fencing.schema.ddl import OPERATIONS, check_mode, check_operations
from fencing.schema.declaration import INFO_KEY, Declaration, declaration_of
from fencing.schema.template import Template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Declaration", "declaration_of", "fenced_by", "resource_of"]

# Types whose text is the same in every session. NullType is a column whose type follows from a
# foreign key that is not resolved yet; what the server says is final (fencing.check_template).
_FIT_TYPES = (
    sqltypes.Integer, sqltypes.String, sqltypes.Uuid, sqltypes.Boolean, sqltypes.NullType
)  # fmt: skip
_UNFIT_TYPES = (sqltypes.CHAR, sqltypes.NCHAR, sqltypes.Enum, CITEXT)

T = TypeVar("T")


def fenced_by(
    template: str, *, operations: Iterable[str] = OPERATIONS, mode: str = "enforce"
) -> Callable[[T], T]:
    """Declare which lease a row of a table needs.

    Decorates a mapped class, or is called with a :class:`~sqlalchemy.schema.Table`::

        @fenced_by("account:{id}")
        class Account(Base): ...

        fenced_by("ledger")(ledger_table)

    The declaration lives in ``Table.info``. It lets the hooks refuse an unfenced write before it
    is sent and notice a missing guard; ``metadata.create_all()`` and Alembic's autogenerate make
    the guard that it says. What protects the table is that guard in the database.

    Args:
        template: The resource of a row, by its *database* columns: ``"account:{id}"``.
        operations: What needs the lease, of ``"insert"``, ``"update"`` and ``"delete"``; default:
            all three.
        mode: ``"enforce"``, the default: a write without the lease is refused; ``"observe"``: it
            passes, and the database reports it.

    Raises:
        TypeError: An argument or what is decorated is of the wrong type.
        ValueError: The template names a column that the table has not, or one whose type has no
            immutable text form; an operation or the mode is none of these.
    """
    declaration = Declaration(
        Template.parse(template), check_operations(operations), check_mode(mode)
    )

    def declare(target: T) -> T:
        table = _table_of(target)
        for name in declaration.template.columns:
            _check_column(table, name, declaration.template)
        table.info[INFO_KEY] = declaration
        return target

    return declare


def resource_of(target: object, **values: object) -> str:
    """The resource of a row, as the database will compute it.

    Args:
        target: A mapped class or a table that :func:`fenced_by` has declared.
        values: The columns its template names, by their *database* names: ``int``, ``str``,
            ``bool`` or ``uuid.UUID``, whichever the column holds.

    Raises:
        TypeError: ``target`` is not declared, or a value is missing, unknown or of another type.
        ValueError: A value is ``None``, or the result is no resource name.
    """
    table = _table_of(target)
    declaration = declaration_of(table)
    if declaration is None:
        raise TypeError(
            f"{table.name} is not declared with fenced_by, so its rows have no resource"
        )
    for column in table.columns:
        if values.get(column.name) is not None and column.name in declaration.template.columns:
            values[column.name] = _as_stored(column, values[column.name])
    return declaration.template.format(values)


def _as_stored(column: Column[Any], value: object) -> object:
    """A value as its column holds it: PostgreSQL would read ``"01"`` as the integer 1."""
    expected: dict[type, type] = {
        sqltypes.Boolean: bool,
        sqltypes.Integer: int,
        sqltypes.String: str,
        sqltypes.Uuid: uuid.UUID,
    }
    wanted = next((w for kind, w in expected.items() if isinstance(column.type, kind)), None)
    if wanted is uuid.UUID and isinstance(value, str):
        return uuid.UUID(value)
    if wanted is not None and (
        not isinstance(value, wanted) or (wanted is int and isinstance(value, bool))
    ):
        raise TypeError(
            f"{column.table.name}.{column.name} is of type {column.type!r}, so its value must be "
            f"of type {wanted.__name__}, not {value!r}"
        )
    return value


def _table_of(target: object) -> Table:
    if isinstance(target, Table):
        return target
    try:
        mapper = inspect(target)
    except NoInspectionAvailable:
        mapper = None
    if not isinstance(mapper, Mapper) or not isinstance(mapper.local_table, Table):
        raise TypeError(f"expected a mapped class or a Table, not {target!r}")
    return mapper.local_table


def _check_column(table: Table, name: str, template: Template) -> None:
    for column in table.columns:
        if column.name == name:
            break
    else:
        known = ", ".join(column.name for column in table.columns)
        raise ValueError(
            f"the resource template {template.source!r} names the column {name!r}, which table "
            f"{table.name!r} has not; its columns are {known}"
        )
    kind: object = column.type
    while isinstance(kind, sqltypes.TypeDecorator | DOMAIN):
        kind = kind.data_type if isinstance(kind, DOMAIN) else kind.impl_instance
    if not isinstance(kind, _FIT_TYPES) or isinstance(kind, _UNFIT_TYPES):
        raise ValueError(  # noqa: TRY004 - it is the template's value that does not fit
            f"the resource template {template.source!r} names the column {name!r} of type "
            f"{column.type!r}, whose text in PostgreSQL is not always the same; use integer, "
            "text, varchar, uuid or boolean columns"
        )

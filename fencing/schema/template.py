"""Resource templates: ``"account:{id}"`` names the resource of a row by its columns.

A field names a *database* column, which may be called anything; braces that are meant literally
are doubled, as in :meth:`str.format`. There are no format specifications: the name must be the
same whether Python or PostgreSQL computes it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fencing.request import check_resource

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Template", "quote_identifier", "quote_literal"]


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed resource template.

    Attributes:
        source: The template as it was written.
        parts: Literal text (``str``) and columns (:class:`Column`), in order.
    """

    source: str
    parts: tuple[str | Column, ...]

    @classmethod
    def parse(cls, source: str) -> Template:
        """Parse a template.

        Raises:
            TypeError: It is not a ``str``.
            ValueError: It is empty, holds NUL, or its braces do not match.
        """
        if not isinstance(source, str):
            raise TypeError(f"a resource template must be a str, not {type(source).__name__}")
        if not source:
            raise ValueError("a resource template must not be empty")
        if "\0" in source:
            raise ValueError(f"a resource template must not contain NUL: {source!r}")
        template = cls(source, tuple(_parts(source)))
        if not template.columns:
            check_resource("".join(str(part) for part in template.parts))
        return template

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns it names, each once, in order."""
        return tuple(dict.fromkeys(p.name for p in self.parts if isinstance(p, Column)))

    def format(self, values: Mapping[str, object]) -> str:
        """The resource that PostgreSQL would compute for a row with these values.

        Args:
            values: Column name to value: ``int``, ``str``, ``bool`` or ``uuid.UUID``.

        Raises:
            TypeError: A value is missing, unknown, or of a type without one text form.
            ValueError: A value is ``None``, or the result is not a resource name.
        """
        missing = [name for name in self.columns if name not in values]
        unknown = [name for name in values if name not in self.columns]
        if missing or unknown:
            raise TypeError(
                f"the template {self.source!r} takes exactly {list(self.columns)}: "
                f"missing {missing}, unknown {unknown}"
            )
        return check_resource(
            "".join(
                _text(part.name, values[part.name]) if isinstance(part, Column) else part
                for part in self.parts
            )
        )

    def sql(self, row: str) -> str:
        """The SQL expression that computes the resource.

        Args:
            row: Alias of the row whose columns are meant.
        """
        # A literal alone has no type, and array_agg would not know what to make of it.
        rendered = " || ".join(
            f"CAST({row}.{quote_identifier(part.name)} AS text)"
            if isinstance(part, Column)
            else f"CAST({quote_literal(part)} AS text)"
            for part in self.parts
        )
        return f'({rendered}) COLLATE "C"'


@dataclass(frozen=True, slots=True)
class Column:
    """A column that a template names."""

    name: str


def quote_identifier(name: str) -> str:
    """``name`` as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """``text`` as an SQL string literal, whatever ``standard_conforming_strings`` says."""
    escaped = text.replace("'", "''")
    if "\\" in escaped:
        return " E'" + escaped.replace("\\", "\\\\") + "'"
    return f"'{escaped}'"


def _parts(source: str) -> Iterator[str | Column]:
    literal = ""
    at = 0
    while at < len(source):
        char = source[at]
        if source[at : at + 2] in ("{{", "}}"):
            literal += char
            at += 2
        elif char == "{":
            end = source.find("}", at)
            name = source[at + 1 : end]
            if end < 0 or not name or "{" in name:
                raise ValueError(
                    f"the resource template {source!r} has a '{{' at position {at} that does not "
                    "open a field like {id}; double it to mean a brace"
                )
            if literal:
                yield literal
            yield Column(name)
            literal = ""
            at = end + 1
        elif char == "}":
            raise ValueError(
                f"the resource template {source!r} has a '}}' at position {at} that closes "
                "nothing; double it to mean a brace"
            )
        else:
            literal += char
            at += 1
    if literal:
        yield literal


def _text(name: str, value: object) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case str():
            return str.__str__(value)  # the text itself, also of a member of a str enum
        case uuid.UUID():
            return str(value)
        case None:
            raise ValueError(f"{name} is None, and a row without it has no resource")
        case _:
            raise TypeError(
                f"{name} is a {type(value).__name__}; only int, str, bool and uuid.UUID have "
                "the same text in Python and in PostgreSQL"
            )

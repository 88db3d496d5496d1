"""How a command fails: in one line, which says where the address came from that it used."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["failing_in_one_line", "in_one_line", "variables_read"]


@contextmanager
def failing_in_one_line(*, without: str = "") -> Iterator[None]:
    """Leave with status 1 and one line where the cause is a database, an argument or a set-up.

    Args:
        without: What the command does where an address is given by nobody; told where it is from
            the environment.
    """
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        line = in_one_line(error, without=without)
        if line is None:
            raise
        raise click.ClickException(line) from error


def in_one_line(error: Exception, *, without: str = "") -> str | None:
    """A failure of the command that runs, with the variables that its addresses came from.

    Returns:
        ``None`` for an exception that is none of the expected ones: let it be raised.
    """
    from fencing.tables.refusals import describe

    line = describe(error)
    variables = variables_read()
    if line is None or not variables:
        return line
    several = len(variables) > 1
    told = f"the address{'es are' if several else ' is'} from {' and '.join(variables)}"
    return f"{line} ({told}{f'; {without}' if without else ''})"


def variables_read() -> list[str]:
    """The environment variables that the command that runs has values from."""
    context = click.get_current_context()
    return [
        next(variable for variable in _several(parameter.envvar) if os.environ.get(variable))
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name or "") is ParameterSource.ENVIRONMENT
    ]


def _several(envvar: Sequence[str] | None) -> list[str]:
    return [envvar] if isinstance(envvar, str) else list(envvar or ())

"""How operations are written into a generated migration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencing.migration.base import FencingOperation

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext

__all__ = ["register", "render"]

_registered = False


def register() -> None:
    """Tell Alembic how our operations are rendered; more than once changes nothing."""
    global _registered  # noqa: PLW0603 -- once in a process
    if not _registered:
        from alembic.autogenerate import renderers  # noqa: PLC0415 -- see FencingOperation

        renderers.dispatch_for(FencingOperation)(render)
        _registered = True


def render(context: AutogenContext, operation: FencingOperation) -> str:
    """One operation as a line of Python, with nothing to import."""
    name, arguments, options = operation.call()
    prefix = context.opts.get("alembic_module_prefix") or ""
    rendered = [repr(argument) for argument in arguments]
    rendered += [f"{key}={value!r}" for key, value in options.items()]
    return f"{prefix}{name}({', '.join(rendered)})"

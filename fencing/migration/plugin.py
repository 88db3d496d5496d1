"""Makes Alembic find the operations, and compare declarations with guards, without an import.

From version 1.18 on Alembic loads the entry points of the group ``alembic.plugins`` while it is
being imported itself. Older versions know no plugins: there, ``import fencing.migration`` in
``env.py`` does the same.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING, Any

from fencing.schema.names import SCHEMA

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

__all__ = ["NAME", "compare", "ensure", "leave_out_ours", "plugin"]

NAME = "alembic.autogenerate.fencing"
"""In the family that ``context.configure(autogenerate_plugins=...)`` includes by default."""


def compare(context: Any, upgrade: Any, schemas: AbstractSet[str | None]) -> Any:  # noqa: ANN401 -- Alembic's signature
    """Autogenerate's comparison of schemas: adds what is to be done about guards."""
    from fencing.migration.comparison import compare_guards  # noqa: PLC0415 -- see above

    del schemas
    compare_guards(context, upgrade)
    return _go_on()


def leave_out_ours(context: Any, upgrade: Any, schemas: set[str | None]) -> Any:  # noqa: ANN401 -- Alembic's signature
    """Keep Alembic from reading schema ``fencing``, which is in nobody's metadata."""
    del context, upgrade
    schemas.discard(SCHEMA)
    return _go_on()


def _go_on() -> Any:  # noqa: ANN401 -- what the version of Alembic wants
    try:
        from alembic.util import PriorityDispatchResult  # noqa: PLC0415 -- older versions have none
    except ImportError:  # before 1.18
        return None
    return PriorityDispatchResult.CONTINUE


class _Plugin(ModuleType):
    """What every version of Alembic takes for a plugin.

    It must be a module from 1.20.1 on, and before that something to iterate over.
    """

    def __iter__(self) -> Iterator[_Plugin]:
        yield self

    @staticmethod
    def setup(registered: Any) -> None:  # noqa: ANN401 -- alembic.runtime.plugins.Plugin
        """Register the operations and the comparison."""
        from alembic.util import DispatchPriority  # noqa: PLC0415 -- older versions have none

        import fencing.migration  # noqa: F401, PLC0415 -- registers the operations

        registered.add_autogenerate_comparator(
            leave_out_ours, "schema", "fencing-first", priority=DispatchPriority.FIRST
        )
        # The last one sees which tables the others have created or dropped.
        registered.add_autogenerate_comparator(
            compare, "schema", "fencing", priority=DispatchPriority.LAST
        )


plugin = _Plugin(NAME, _Plugin.__doc__)

_ensured = False


def ensure() -> None:
    """Register the comparison where no entry point has done so, nor will."""
    global _ensured  # noqa: PLW0603 -- once in a process
    import alembic  # noqa: PLC0415 -- see above

    # It has its version when its own import is complete. Until then it is loading plugins.
    if _ensured or not hasattr(alembic, "__version__"):
        return
    _ensured = True
    try:
        from alembic.runtime import plugins  # noqa: PLC0415 -- older versions have none
    except ImportError:
        from alembic.autogenerate import comparators  # noqa: PLC0415 -- see above

        # They know no priorities, and their registry has no other door.
        comparators._registry["schema", "default"].insert(0, leave_out_ours)  # noqa: SLF001 -- as just said
        comparators.dispatch_for("schema")(compare)
        return
    if NAME not in plugins._all_plugins:  # noqa: SLF001 -- there is no public way to ask
        plugins.Plugin.setup_plugin_from_module(plugin, NAME)

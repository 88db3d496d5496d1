"""What ``@guard.holding(...)`` reads off a function: the resource of a call."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from fencing.schema.template import Template

if TYPE_CHECKING:
    from collections.abc import Callable

    from fencing.request import AcquireRequest

__all__ = ["check_not_bare", "resource_of_call"]


def check_not_bare(template: object) -> None:
    """Refuse ``@guard.holding`` without arguments, which would decorate nothing.

    Raises:
        TypeError: What should be the template is a function.
    """
    if callable(template):
        raise TypeError(
            "holding() takes the template of a resource, not a function: "
            '@guard.holding("account:{account_id}")'
        )


def resource_of_call(
    function: Callable[..., Any],
    template: str,
    kind: type[AcquireRequest],
    options: dict[str, Any],
) -> Callable[..., str]:
    """A function that names the resource of a call with the same arguments.

    Args:
        function: The function that is decorated.
        template: Names the resource by parameters of the function: ``"account:{account_id}"``.
        kind: What an acquisition is asked for with.
        options: Arguments of ``acquire``; checked here, before the first call.

    Raises:
        TypeError: An argument is of the wrong type, or the function is a generator.
        ValueError: The template names something that is no parameter of the function.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{function.__qualname__} is a generator: its body runs when it is iterated over, not "
            "when it is called; acquire the lease inside it"
        )
    kind(resource="checked before it is known", **options)
    parsed = Template.parse(template)
    signature = inspect.signature(function)
    kinds = {p.kind for p in signature.parameters.values()}
    unknown = [name for name in parsed.columns if name not in signature.parameters]
    if unknown and inspect.Parameter.VAR_KEYWORD not in kinds:
        raise ValueError(
            f"the resource template {template!r} names {unknown[0]!r}, which is no parameter of "
            f"{function.__qualname__}{signature}"
        )

    def resource(*args: Any, **kwargs: Any) -> str:  # noqa: ANN401 - whatever the function takes
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        found = {**kwargs, **bound.arguments}
        return parsed.format({name: found[name] for name in parsed.columns if name in found})

    return resource

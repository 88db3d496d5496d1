"""What a lock service needs besides; imported by who makes one, not by who names its class."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["needing"]


def needing(package: str, module: str, *, extra: str, service: str) -> ModuleType:
    """Import a module of ours that imports a package which may not be installed.

    Args:
        package: Which package.
        module: Our module.
        extra: What brings the package.
        service: Who needs it.

    Raises:
        ModuleNotFoundError: It is not installed; the message says what to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise ModuleNotFoundError(
            f'{service} needs {package}, which is not installed: pip install "fencing[{extra}]"',
            name=package,
        ) from error

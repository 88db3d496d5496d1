"""What a run needs besides this package's own dependencies, and whether it is installed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from fencing.torture.paths import PATHS

if TYPE_CHECKING:
    from fencing.torture.settings import Settings

__all__ = ["check_installed", "installed_paths", "missing_paths"]

_OF_PATHS = {"asyncpg": ("asyncpg", "asyncpg")}
"""Package and the extra that brings it, by the path's name."""
_OF_SERVICES = {"etcd": ("httpx", "etcd"), "zookeeper": ("kazoo", "zookeeper")}
"""The same, by the lock service's name."""


def installed_paths() -> tuple[str, ...]:
    """The paths whose drivers are installed: what is taken where none are named."""
    return tuple(path for path in PATHS if path not in _OF_PATHS or _is_there(_OF_PATHS[path][0]))


def missing_paths(settings: Settings) -> tuple[str, ...]:
    """The paths that a run with all that there are goes without, and what would bring each."""
    if settings.paths != installed_paths():
        return ()  # they were chosen
    return tuple(
        f'path {path!r} (pip install "fencing[{_OF_PATHS[path][1]}]")'
        for path in PATHS
        if path not in settings.paths
    )


def check_installed(settings: Settings) -> None:
    """See that what a run's paths and lock service need is there, before any server is started.

    Raises:
        ModuleNotFoundError: It is not; the message says what to install.
    """
    needed = {f"path {path!r}": _OF_PATHS[path] for path in settings.paths if path in _OF_PATHS}
    if settings.lock_service in _OF_SERVICES:
        needed[f"lock service {settings.lock_service!r}"] = _OF_SERVICES[settings.lock_service]
    for who, (package, extra) in needed.items():
        if not _is_there(package):
            raise ModuleNotFoundError(
                f'{who} needs {package}, which is not installed: pip install "fencing[{extra}]"',
                name=package,
            )


def _is_there(package: str) -> bool:
    return find_spec(package) is not None

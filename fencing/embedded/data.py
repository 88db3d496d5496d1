"""A server whose data is in one folder, and can be copied, put back and thrown away."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from fencing.embedded.server import LocalServer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ServerWithData"]


class ServerWithData(LocalServer):
    """A server that keeps its data from `start` to `start`."""

    @property
    def data(self) -> Path:
        """The folder with its data."""
        return self.process.directory / "data"

    def forget(self) -> None:
        """Throw its data away; it must have been stopped."""
        shutil.rmtree(self.data)

    def keep(self, name: str) -> None:
        """Copy its data; it must have been stopped."""
        shutil.copytree(self.data, self.process.directory / name)

    def restore(self, name: str) -> None:
        """Take what was copied for its data; it must have been stopped."""
        self.forget()
        shutil.copytree(self.process.directory / name, self.data, dirs_exist_ok=True)

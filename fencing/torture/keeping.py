"""Keeps a history in a file, for whoever wants to look at it."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from fencing.torture.history import History

__all__ = ["save"]


def save(history: History, path: Path) -> None:
    """Write a history as JSON; its fields are those of :class:`History`."""
    # Sets, of which a few are in it, are none of JSON's.
    path.write_text(json.dumps(dataclasses.asdict(history), default=sorted), encoding="utf-8")

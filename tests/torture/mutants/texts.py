"""Changes to texts that are seen to apply."""

from __future__ import annotations

__all__ = ["replaced"]


def replaced(text: str, *replacements: tuple[str, str]) -> str:
    """A text with something else in it, wherever that is.

    Raises:
        ValueError: It is not there: what was to be changed looks different by now.
    """
    for old, new in replacements:
        if old not in text:
            raise ValueError(f"the text to change is not there: {old!r}")
        text = text.replace(old, new)
    return text

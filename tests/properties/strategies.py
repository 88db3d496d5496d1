"""What may be given to this package, in all its variety."""

from __future__ import annotations

import uuid

from hypothesis import strategies as st

from fencing.request import MAX_RESOURCE_BYTES

__all__ = ["columns", "namespaces", "resources", "values"]

# What means something to a lock service's keys, to SQL or to a template; and what does not.
_PIECES = st.one_of(
    st.sampled_from([*"{}%/\\'\"$:;*?[]^.-_ \n\t\r", "..", "--", "$$", "$fencing$", "%7B", "\x7f"]),
    st.characters(codec="utf-8", exclude_characters="\0"),
)


def _fits(text: str) -> bool:
    return 0 < len(text.encode()) <= MAX_RESOURCE_BYTES


resources = st.lists(_PIECES, min_size=1, max_size=40).map("".join).filter(_fits)
"""Names of resources."""

namespaces = st.text("abcz_.:@-9", min_size=1, max_size=12).filter(
    lambda name: set(name) != {"."} and name != "zookeeper"
)
"""Namespaces that every lock service takes."""

columns = (
    st.lists(_PIECES, min_size=1, max_size=12)
    .map("".join)
    .filter(lambda name: 0 < len(name.encode()) <= 63)  # PostgreSQL cuts longer names off
)
"""Names of columns and tables."""

values = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.uuids().map(lambda each: uuid.UUID(int=each.int)),
    st.lists(_PIECES, max_size=20).map("".join),
)
"""Values that a resource may be named by."""

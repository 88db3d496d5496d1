"""What Redis meant is what is read, whatever the answers are and however they come in pieces."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencing.locks.redis.resp import MISSING, Answers


@dataclass(frozen=True)
class Said:
    """An answer: its bytes, and what they mean."""

    data: bytes
    meant: Any


class RefusedError(Exception):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefusedError) and self.args == other.args

    __hash__ = Exception.__hash__


def text_of(text: bytes) -> Said:
    return Said(b"$%d\r\n%b\r\n" % (len(text), text), text)


def list_of(items: list[Said], mark: bytes = b"*") -> Said:
    size = len(items) // 2 if mark == b"%" else len(items)
    data = b"%b%d\r\n%b" % (mark, size, b"".join(item.data for item in items))
    return Said(data, [item.meant for item in items])


def map_of(pairs: list[tuple[Said, Said]]) -> Said:
    return list_of([item for pair in pairs for item in pair], b"%")


# Such as look like the protocol's own words, whole or cut.
WORDS = st.sampled_from([b"", b"\r", b"\n", b"\r\n", b"$0\r\n", b"$-1\r\n", b"*1\r\n", b":1\r\n"])
TEXTS = st.builds(text_of, st.lists(WORDS | st.binary(max_size=8), max_size=3).map(b"".join))
LINES = st.text("abc -_", max_size=8)
NOTHING = st.sampled_from([Said(b"$-1\r\n", None), Said(b"*-1\r\n", None), Said(b"_\r\n", None)])
NUMBERS = st.integers(-(2**63), 2**63 - 1).map(lambda number: Said(b":%d\r\n" % number, number))
SIMPLE = LINES.map(lambda line: Said(b"+%b\r\n" % line.encode(), line.encode()))
ERRORS = LINES.map(lambda line: Said(b"-%b\r\n" % line.encode(), RefusedError(line)))
ANSWERS = st.recursive(
    TEXTS | NOTHING | NUMBERS | SIMPLE | ERRORS,
    lambda items: (
        st.lists(items, max_size=4).map(list_of)
        | st.lists(st.tuples(items, items), max_size=2).map(map_of)
    ),
    max_leaves=6,
) | st.lists(TEXTS, max_size=5).map(list_of)
PUSHES = st.lists(TEXTS | NUMBERS, min_size=1, max_size=3).map(
    lambda items: list_of(items, b">").data
)
UNWANTED = st.sampled_from([b":1\r\n", b":0\r\n", b"-MOVED 7 127.0.0.1:7000\r\n"])


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], list[Any], int]:
    """What comes, piece by piece, what it means, and how many answers before that are skipped."""
    unwanted = draw(st.lists(UNWANTED, max_size=1))
    said = draw(st.lists(st.tuples(PUSHES | st.just(b""), ANSWERS), min_size=1, max_size=4))
    data = b"".join([*unwanted, *(push + answer.data for push, answer in said)])
    # Any place will do, but it is at the ends of lines that what is unfinished looks finished.
    lines = [found.end() for found in re.finditer(b"\r\n", data)]
    near = st.tuples(st.sampled_from(lines), st.integers(-1, 1)).map(sum)
    cuts = draw(st.sets(near | st.integers(0, len(data)), max_size=6))
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[at:end] for at, end in itertools.pairwise(places) if data[at:end]]
    return pieces, [answer.meant for _, answer in said], len(unwanted)


@example(([b"*2\r\n$4\r\nheld\r\n$0\r\n", b"\r\n$1\r\na\r\n"], [[b"held", b""], b"a"], 0))
@example(([b"*1\r\n$0\r\n", b"\r\n"], [[b""]], 0))
@example(([b"$-1\r\n*", b"1\r\n$1\r\na\r\n"], [None, [b"a"]], 0))
@settings(max_examples=500)
@given(streams())
def test_answers_are_what_was_meant(stream: tuple[list[bytes], list[Any], int]) -> None:
    pieces, meant, unwanted = stream
    answers = Answers(RefusedError)
    answers.skips = unwanted
    came = []
    for piece in pieces:
        answer = answers.take(piece)
        while answer is not MISSING:
            came.append(answer)
            answer = answers.next()
    assert came == meant
    assert not answers.unread

"""Answers are read from bytes as redis-py reads them, however the bytes are cut into packets."""

from __future__ import annotations

import io
from typing import Any

import pytest
import redis
from redis.exceptions import InvalidResponse

from fencing.locks.redis.resp import MISSING, Answers

ANSWERS = {
    b"*2\r\n$7\r\ngranted\r\n$2\r\nab\r\n": [b"granted", b"ab"],
    b"*1\r\n$6\r\n\r\n$1\r\n\r\n": [b"\r\n$1\r\n"],
    b"*2\r\n$1\r\nx\r\n$6\r\n\r\n$1\r\n\r\n": [b"x", b"\r\n$1\r\n"],
    b"*1\r\n$8\r\nab\r\n$9\r\n\r\n": [b"ab\r\n$9\r\n"],
    b"*2\r\n:7\r\n+ab\r\n": [7, b"ab"],
    b"*2\r\n$-1\r\n$-1\r\n": [None, None],
    b"*0\r\n": [],
    b"*-1\r\n": None,
    b"_\r\n": None,
    b"$-1\r\n": None,
    b"$0\r\n\r\n": b"",
    b"+OK\r\n": b"OK",
    b":-12\r\n": -12,
    b"*3\r\n:7\r\n$-1\r\n*2\r\n$1\r\nx\r\n:1\r\n": [7, None, [b"x", 1]],
}


def error_of(text: str) -> Exception:
    return redis.Connection()._parser.parse_error(text)


@pytest.mark.parametrize(("data", "answer"), ANSWERS.items())
def test_whole_and_byte_by_byte(data: bytes, answer: Any) -> None:
    answers = Answers(error_of)
    assert answers.take(data) == answer
    assert not answers.unread
    answers.feed(data)
    assert answers.next() == answer
    assert not answers.unread
    for byte in data:
        assert answers.next() is MISSING
        answers.feed(bytes([byte]))
    assert answers.next() == answer
    assert not answers.unread


PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"


@pytest.mark.parametrize(
    "before", [b":1\r\n", b":0\r\n", b"-MOVED 7 127.0.0.1:7000\r\n", PUSH + b":1\r\n"]
)
def test_an_answer_of_one_line_that_nobody_wants_is_left_out(before: bytes) -> None:
    for data, answer in ANSWERS.items():
        for cut in range(len(before + data)):
            answers = Answers(error_of)
            answers.skips += 1
            assert answers.next() is MISSING
            answers.feed((before + data)[:cut])
            assert answers.next() is MISSING
            answers.feed((before + data)[cut:])
            assert answers.next() == answer
            assert not answers.unread
            answers.feed(data)
            assert answers.next() == answer, "only once"


def test_one_after_the_other_in_packets_of_every_size() -> None:
    data = b"".join(ANSWERS)
    for size in range(1, len(data) + 1):
        answers = Answers(error_of)
        stream, came = io.BytesIO(data), []
        while packet := stream.read(size):
            answer = answers.take(packet)
            while answer is not MISSING:
                came.append(answer)
                answer = answers.next()
        assert came == list(ANSWERS.values())
        assert not answers.unread


@pytest.mark.parametrize(
    ("data", "kind", "says"),
    [
        (b"-NOSCRIPT No matching script.\r\n", redis.exceptions.NoScriptError, "No matching"),
        (b"-READONLY You can't write\r\n", redis.ReadOnlyError, "can't write"),
        (b"-LOADING Redis is loading\r\n", redis.exceptions.BusyLoadingError, "is loading"),
        (b"-WRONGTYPE \xff\r\n", redis.ResponseError, "WRONGTYPE"),
    ],
)
def test_an_error_is_given_as_an_exception(data: bytes, kind: type[Exception], says: str) -> None:
    answers = Answers(error_of)
    answers.feed(data + b":1\r\n")
    error = answers.next()
    assert isinstance(error, kind)
    assert says in str(error)
    assert answers.next() == 1


def test_what_redis_tells_unasked_is_passed_over() -> None:
    answers = Answers(error_of)
    answers.feed(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n")
    assert answers.next() is MISSING
    assert not answers.unread
    answers.feed(b">1\r\n+x\r\n:5\r\n")
    assert answers.next() == 5


@pytest.mark.parametrize(
    "data", [b"HTTP/1.1 400\r\n", b"$x\r\n", b"*one\r\n", b":\r\n", b"#t\r\n", b"\r\n"]
)
def test_what_is_no_answer_is_refused(data: bytes) -> None:
    answers = Answers(error_of)
    answers.feed(data)
    with pytest.raises(InvalidResponse):
        answers.next()


def test_a_part_of_an_answer_is_noticed() -> None:
    answers = Answers(error_of)
    answers.feed(b":1\r\n:2")
    assert answers.next() == 1
    assert answers.unread

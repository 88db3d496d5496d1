"""What a request makes of its arguments; what it refuses is in the contract of lock services."""

from __future__ import annotations

import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum

import pytest

from fencing.request import AcquireRequest, AsyncAcquireRequest


class Level(IntEnum):
    """A number by another name."""

    HIGH = 7


def test_a_member_of_an_int_enum_is_the_number_it_is():
    assert type(AcquireRequest(resource="x", floor=Level.HIGH).floor) is int


def test_patience_is_zero_without_waiting_and_endless_without_a_limit():
    assert AcquireRequest(resource="x", blocking=False).patience == 0
    assert AcquireRequest(resource="x").patience == float("inf")
    assert AcquireRequest(resource="x", blocking_timeout=2).patience == 2


async def coroutine_function(lease):
    """As an ``on_lost``."""


@pytest.mark.parametrize(
    ("wishes", "error", "text"),
    [
        ({"fair": 1}, TypeError, "fair must be a bool"),
        ({"keepalive": "yes"}, TypeError, "keepalive must be a bool"),
        ({"reentrant": None}, TypeError, "reentrant must be a bool"),
        ({"fair": True, "blocking": False}, ValueError, "waits in line"),
        ({"max_lifetime": 60}, ValueError, "keepalive=True"),
        ({"max_lifetime": 1, "keepalive": True}, ValueError, "at least the ttl"),
        ({"max_lifetime": "1", "keepalive": True}, TypeError, "number of seconds"),
        ({"max_lifetime": float("inf"), "keepalive": True}, ValueError, "finite"),
        ({"on_lost": "me"}, TypeError, "function of a lease"),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(wishes, error, text):
    for kind in (AcquireRequest, AsyncAcquireRequest):
        with pytest.raises(error, match=text):
            kind(resource="x", **wishes)


def test_a_coroutine_function_is_called_only_where_it_can_be_awaited():
    AsyncAcquireRequest(resource="x", on_lost=coroutine_function)
    with pytest.raises(TypeError, match="nobody would await it"):
        AcquireRequest(resource="x", on_lost=coroutine_function)
    with pytest.raises(TypeError, match="cancel_on_loss must be a bool"):
        AsyncAcquireRequest(resource="x", cancel_on_loss=1)


def test_a_guard_asks_its_lock_service_for_what_differs_from_the_default():
    plain = AcquireRequest(resource="x", owner="me")
    assert plain.forwarded == {"ttl": 30.0, "owner": "me", "floor": 0, "blocking_timeout": None}
    wishes = {"fair": True, "keepalive": True, "max_lifetime": 99, "blocking_timeout": 1}
    asked = AcquireRequest(resource="x", on_lost=print, reentrant=True, **wishes).forwarded
    assert asked == {"ttl": 30.0, "owner": asked["owner"], "floor": 0, **wishes}
    at_once = AcquireRequest(resource="x", owner="me", blocking=False).forwarded
    assert at_once == {"ttl": 30.0, "owner": "me", "floor": 0}


def label() -> str:
    return AcquireRequest(resource="x").owner_label


def test_an_owner_is_by_default_a_host_a_process_and_a_thread():
    with ThreadPoolExecutor(1, thread_name_prefix="Worker") as threads:
        labels = [label(), label(), threads.submit(label).result()]
    host, pid = socket.gethostname(), os.getpid()
    ours = f"{host}:{pid}:{threading.current_thread().name}"
    assert labels == [ours, ours, f"{host}:{pid}:Worker_0"]


def test_the_default_owner_can_be_printed_and_sent_whatever_the_thread_is_called():
    labels = []
    for name in ("a\ud800b", "a\0b", "a\r\n\x1b[2Jb", "Zoë 'x' \\ 線程"):
        thread = threading.Thread(target=lambda: labels.append(label()), name=name)
        thread.start()
        thread.join()
    ours = f"{socket.gethostname()}:{os.getpid()}:"
    assert labels == [
        rf"{ours}a\ud800b", rf"{ours}a\x00b", rf"{ours}a\r\n\x1b[2Jb", rf"{ours}Zoë 'x' \ 線程",
    ]  # fmt: skip
    for each in labels:
        assert AcquireRequest(resource="x", owner=each).owner_label == each


def test_a_forked_child_is_another_owner():
    label()  # the parent knows its own
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, label().encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    said = os.read(reading, 1000).decode()
    os.close(reading)
    assert said == f"{socket.gethostname()}:{child}:{threading.current_thread().name}"


@pytest.mark.parametrize(
    ("wishes", "kept_or_watched"),
    [({}, False), ({"keepalive": True}, True), ({"on_lost": print}, True)],
)
def test_what_has_to_be_looked_after_in_the_background(wishes, kept_or_watched):
    for kind in (AcquireRequest, AsyncAcquireRequest):
        assert kind(resource="x", **wishes).is_kept_or_watched is kept_or_watched
    cancelled = AsyncAcquireRequest(resource="x", cancel_on_loss=True, **wishes)
    assert cancelled.is_kept_or_watched

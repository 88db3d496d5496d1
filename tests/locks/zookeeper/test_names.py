"""Names of nodes, and what they hold."""

from __future__ import annotations

import pytest

from fencing.locks.zookeeper.names import (
    Content,
    Space,
    check_namespace,
    content_of,
    escaped,
    line_of,
    offset_in,
    resource_of,
)


@pytest.mark.parametrize(
    "name",
    [".", "..", "a/b", "account:42", "%", "%41", "\x01\x1f\x7f", "ключ", "\uffff", "x" * 512],
)
def test_every_name_is_one_node_and_comes_back(name):
    node = escaped(name)
    assert node.isascii()
    assert not set(node) & set("/. ")
    assert resource_of(node) == name


@pytest.mark.parametrize("node", ["a.b", "%zz", "%41", "%ff", "", "%2f"])
def test_another_s_node_is_none_of_ours(node):
    assert resource_of(node) is None


def test_names_are_found_by_their_beginning():
    space = Space("n")
    assert space.resources(["b", "a%2F1", "a%2", "a%2F0"], "a/") == ["a/0", "a/1"]


def test_a_line_is_in_the_order_of_the_numbers():
    one, two = "a" * 32, "0" * 32
    names = [f"{two}-0000000010", "other", f"{one}-0000000009", f"{one}-9", "x-0000000001"]
    assert [(n.holder, n.number) for n in line_of("/p", names)] == [(one, 9), (two, 10)]


def test_contents_come_back():
    content = Content(86_400_000, "me: ключ\n 1")
    assert content_of(content.encoded()) == content
    for data in (b"", b"1", b"2 30 x", b"1 x y", b"1 -1 x"):
        assert content_of(data) is None


def test_offsets():
    assert offset_in(b"9007199254740991") == 2**53 - 1
    assert [offset_in(data) for data in (b"", b"-1", b"1e9", b"1" * 17)] == [None] * 4


@pytest.mark.parametrize("namespace", ["", "a/b", ".", "..", "zookeeper", "ü", "a b"])
def test_a_namespace_that_names_no_node(namespace):
    with pytest.raises(ValueError, match="namespace"):
        check_namespace(namespace)


def test_a_namespace_is_a_str():
    with pytest.raises(TypeError, match="namespace"):
        check_namespace(b"fencing")  # type: ignore[arg-type]  # the point

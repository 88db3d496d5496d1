"""Any name is a resource of its own, in every lock service."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from redis.crc import key_slot

from fencing.locks.etcd.keys import Keys
from fencing.locks.redis.scripts import keys_of, resource_of_key
from fencing.locks.zookeeper import names
from tests.properties.strategies import namespaces, resources

HOLDER = "0123456789abcdef" * 2


@given(namespaces, resources)
@example("a", "}")
@example("a", "%7B")
def test_in_redis_a_key_tells_its_resource_and_all_keys_share_a_slot(namespace, resource):
    keys = keys_of(namespace, resource)
    assert resource_of_key(namespace, keys[0].decode()) == resource
    assert len({key_slot(key) for key in keys}) == 1
    assert len(set(keys)) == len(keys)


@given(namespaces, namespaces, resources, resources)
def test_in_redis_no_key_is_another_resource_s(one_space, other_space, one, other):
    if (one_space, one) != (other_space, other):
        assert not set(keys_of(one_space, one)) & set(keys_of(other_space, other))


@given(namespaces, resources)
def test_in_etcd_a_place_tells_its_resource_and_holder(namespace, resource):
    keys = Keys(namespace)
    place = keys.place(resource, HOLDER)
    assert keys.of_place(place) == (resource, HOLDER)
    start, end = keys.places(resource)
    assert start <= place < end


@given(namespaces, namespaces, resources, resources)
@example("a", "a", "x", "x\x01")
def test_in_etcd_no_place_is_in_another_resource_s_range(one_space, other_space, one, other):
    if (one_space, one) != (other_space, other):
        place = Keys(one_space).place(one, HOLDER)
        start, end = Keys(other_space).places(other)
        assert not start <= place < end
        assert Keys(one_space).offset(one) != Keys(other_space).offset(other)
        assert not start <= Keys(one_space).offset(one) < end


@given(namespaces, resources, st.integers(0, 20))
def test_in_etcd_a_scan_finds_what_begins_so_and_nothing_else(namespace, resource, size):
    keys = Keys(namespace)
    prefix = resource[:size]
    start, end = keys.all_places(prefix)
    assert start <= keys.place(resource, HOLDER) < end


@given(namespaces, resources, resources)
def test_in_etcd_a_scan_finds_nothing_that_begins_otherwise(namespace, resource, prefix):
    if not resource.startswith(prefix):
        start, end = Keys(namespace).all_places(prefix)
        assert not start <= Keys(namespace).place(resource, HOLDER) < end


@given(resources)
@example(".")
@example("..")
@example("%")
def test_in_zookeeper_a_name_tells_its_resource_and_is_one(resource):
    name = names.escaped(resource)
    assert names.resource_of(name) == resource
    assert not set(name) & set("/\0")
    assert name not in {".", ".."}
    assert name.isascii()


@given(resources, resources)
def test_in_zookeeper_no_name_is_another_s(one, other):
    assert (names.escaped(one) == names.escaped(other)) == (one == other)

"""The lock service at an etcd:// address."""

from __future__ import annotations

import subprocess
import sys

import pytest
import trustme

import fencing
from fencing import AsyncEtcdLockService, EtcdLockService
from fencing.locks.etcd.address import Address, address_in, tls_context


def test_an_address_names_a_lock_service():
    locks = fencing.connect("etcd://127.0.0.1:1/", namespace="mine")
    assert isinstance(locks, EtcdLockService)
    assert locks.namespace == "mine"
    assert isinstance(fencing.connect_async("ETCD://127.0.0.1"), AsyncEtcdLockService)


def test_a_lock_is_acquired_at_an_address(etcd_url, etcd_namespace):
    with (
        fencing.connect(etcd_url, namespace=etcd_namespace) as locks,
        locks.acquire("r", ttl=10) as lease,
    ):
        assert lease.token >= 1


@pytest.mark.parametrize(
    ("url", "endpoints", "user", "password"),
    [
        ("etcd://localhost", ["http://localhost:2379"], None, None),
        ("etcd://a:1,b:2/", ["http://a:1", "http://b:2"], None, None),
        ("etcds://a,b:2", ["https://a:2379", "https://b:2"], None, None),
        ("etcd://[::1],[::1]:7/", ["http://[::1]:2379", "http://[::1]:7"], None, None),
        ("etcd://me:p%40ss%2F@a", ["http://a:2379"], "me", "p@ss/"),
        ("etcd://me@a", ["http://a:2379"], "me", None),
    ],
)
def test_what_an_address_says(url, endpoints, user, password):
    assert address_in(url) == (endpoints, user, password)


@pytest.mark.parametrize(
    "url",
    ["etcd://", "etcd://a,/", "etcd://a/b", "etcd://a?x=1", "etcd://a#b", "http://a", "a:2379"],
)
def test_an_address_that_makes_no_sense(url):
    with pytest.raises(ValueError, match="address"):
        EtcdLockService.from_url(url)


@pytest.mark.parametrize(
    ("endpoints", "options"),
    [
        ((), {}),
        (["ftp://a"], {}),
        (["http://a/b"], {}),
        (["http://a", "https://b"], {}),
        (["http://a:99999"], {}),
        (["http://a"], {"password": "p"}),
        (["http://a"], {"namespace": ""}),
        (["http://a"], {"namespace": "a/lock"}),
        (["http://a"], {"namespace": "a\0"}),
    ],
)
def test_settings_that_make_no_sense(endpoints, options):
    with pytest.raises(ValueError, match=r"endpoint|password|namespace|[Pp]ort"):
        EtcdLockService(endpoints, **options)


def test_a_password_is_in_no_message():
    for attempt in (
        lambda: EtcdLockService.from_url("etcd://me:secret@a/b"),
        lambda: EtcdLockService("http://me:secret@a"),
    ):
        with pytest.raises(ValueError, match="etcd") as caught:
            attempt()
        assert "secret" not in str(caught.value)
    assert "secret" not in repr(Address(("http://a",), "me", "secret"))
    assert "secret" not in repr(EtcdLockService.from_url("etcd://me:secret@a"))


def test_tls_is_for_addresses_with_tls(tmp_path):
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with pytest.raises(ValueError, match="TLS"):
        EtcdLockService.from_url("etcd://a", ca=tmp_path / "ca.pem")
    assert EtcdLockService.from_url("etcds://a", ca=tmp_path / "ca.pem")
    with pytest.raises(ValueError, match="certificate"):
        tls_context(None, None, "key.pem")
    with pytest.raises(FileNotFoundError):
        tls_context(tmp_path / "missing.pem", None, None)


WITHOUT_HTTPX = """
import sys
sys.modules["httpx"] = None
import fencing
for connect in (fencing.connect, fencing.connect_async):
    try:
        connect("etcd://localhost")
    except ModuleNotFoundError as error:
        print(error)
assert fencing.connect("redis://localhost")
"""


def test_a_missing_extra_is_named():
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HTTPX], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        f'{name} needs httpx, which is not installed: pip install "fencing[etcd]"'
        for name in ("EtcdLockService", "EtcdLockService")
    ]

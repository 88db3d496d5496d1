"""Where an etcd is, and who asks it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from fencing.service import FOR_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

__all__ = ["Address", "address_in", "tls_context"]

PORT = 2379
"""Where etcd listens to clients, if the address does not say."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where an etcd is, and who asks it.

    Attributes:
        endpoints: Its members, as ``http://127.0.0.1:2379`` or ``https://…``; the next one is tried
            when one does not answer.
        user: Who asks; empty: nobody in particular.
        password: His password.
        tls: How its certificate is verified, and what we show; ``None``: without TLS.
    """

    endpoints: tuple[str, ...]
    user: str = ""
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(
        cls,
        endpoints: str | Sequence[str],
        user: str | None,
        password: str | None,
        tls: ssl.SSLContext | None,
    ) -> Address:
        """Check what a service was given.

        Raises:
            TypeError: An endpoint is no ``str``.
            ValueError: An endpoint makes no sense, or there is none; or a password without a user.
        """
        given = (endpoints,) if isinstance(endpoints, str) else tuple(endpoints)
        if not given:
            raise ValueError("an etcd has at least one endpoint, such as http://127.0.0.1:2379")
        if password is not None and not user:
            raise ValueError("a password was given without a user")
        schemes = {_scheme_of(endpoint) for endpoint in given}
        if len(schemes) > 1:
            raise ValueError("the endpoints of an etcd are all http:// or all https://")
        if tls is not None and schemes == {"http"}:
            raise ValueError("TLS was set up for endpoints that begin with http://, not https://")
        if tls is None and schemes == {"https"}:
            tls = ssl.create_default_context()
        return cls(tuple(each.rstrip("/") for each in given), user or "", password or "", tls)


def _scheme_of(endpoint: str) -> str:
    if not isinstance(endpoint, str):
        raise TypeError(f"an endpoint must be a str, not {type(endpoint).__name__}")
    parts = urlsplit(endpoint)
    if parts.scheme in {"etcd", "etcds"}:
        raise ValueError(
            "an endpoint of etcd is http://host:port, not an address such as etcd://host; "
            f"{FOR_ADDRESS}"
        )
    if (
        parts.scheme not in {"http", "https"}
        or not parts.hostname
        or parts.path not in {"", "/"}
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        # Not the endpoint itself, which may hold a password.
        raise ValueError(
            "an endpoint of etcd is http://host:port or https://host:port, without anything else; "
            "user and password are given apart"
        )
    try:
        _ = parts.port
    except ValueError:  # which tells the port, that may be part of a password
        raise ValueError(
            f"the port of an etcd must be a number up to 65535, such as {PORT}; what is special in "
            "a password must be escaped (%40 for @, %2F for /)"
        ) from None
    return parts.scheme


def address_in(url: str) -> tuple[list[str], str | None, str | None]:
    """Read ``etcd://user:password@host:2379,host2:2379/``; ``etcds://`` is the same over TLS.

    Returns:
        The endpoints, the user and the password.

    Raises:
        TypeError: It is not a ``str``.
        ValueError: It makes no sense.
    """
    if not isinstance(url, str):
        raise TypeError(f"the address of an etcd must be a str, not {type(url).__name__}")
    scheme, colon, rest = url.partition("://")
    schemes = {"etcd": "http", "etcds": "https"}
    if not colon or scheme.lower() not in schemes:
        raise ValueError("the address of an etcd begins with etcd:// or, with TLS, etcds://")
    netloc, _, path = rest.partition("/")
    secrets, at, hosts = netloc.rpartition("@")
    if path or "?" in hosts or "#" in hosts or not all(hosts.split(",")):
        raise ValueError(
            "the address of an etcd is etcd://user:password@host:port,host:port/ and nothing "
            "behind it; what else there is to say are arguments"
        )
    user, has_password, password = secrets.partition(":")
    endpoints = [_endpoint(schemes[scheme.lower()], host) for host in hosts.split(",")]
    return (
        endpoints,
        unquote(user) if at and user else None,
        unquote(password) if has_password else None,
    )


def _endpoint(scheme: str, host: str) -> str:
    has_port = ":" in host.rpartition("]")[2]
    return f"{scheme}://{host}" if has_port else f"{scheme}://{host}:{PORT}"


def tls_context(
    ca: str | PathLike[str] | None,
    certificate: str | PathLike[str] | None,
    key: str | PathLike[str] | None,
) -> ssl.SSLContext | None:
    """What TLS is to be like; ``None``: nothing was said about it.

    Args:
        ca: A file with the certificates of those who may vouch for etcd; default: the system's.
        certificate: A file with our own certificate, and perhaps its key.
        key: A file with its key.

    Raises:
        OSError: A file cannot be read, or is no certificate (``ssl.SSLError``).
        ValueError: A key was given without a certificate.
    """
    if key is not None and certificate is None:
        raise ValueError("a key was given without its certificate")
    if ca is None and certificate is None:
        return None
    context = ssl.create_default_context(cafile=ca)
    if certificate is not None:
        context.load_cert_chain(certificate, key)
    return context

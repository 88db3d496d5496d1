"""Containers: nodes that ZooKeeper removes some time after their last child.

ZooKeeper has them since 3.5.3; kazoo has no method for them, so the request is made of its parts.
"""

from __future__ import annotations

from typing import Any

from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE

__all__ = ["create_container"]

_CONTAINER = 4
"""The flag of such a node (``CreateMode.CONTAINER``)."""


class _CreateContainer(Create2):  # type: ignore[misc]  # kazoo has no types
    """The request ``createContainer``, which is otherwise one like ``create2``."""

    type = 19


def create_container(client: Any, path: str, data: bytes) -> Any:  # noqa: ANN401 - kazoo's
    """Make a container.

    Args:
        client: A ``KazooClient``.
        path: Its path, under the client's chroot.
        data: What it holds.

    Returns:
        kazoo's ``IAsyncResult``.
    """
    result = client.handler.async_result()
    acl = client.default_acl or OPEN_ACL_UNSAFE
    request = _CreateContainer(client.chroot + path, data, acl, _CONTAINER)
    client._call(request, result)  # noqa: SLF001 - the one way to send what kazoo has no method for
    return result

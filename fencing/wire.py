"""What has arrived on a connection of libpq's and was not read yet."""

from __future__ import annotations

import os
import socket
from typing import Any

__all__ = ["ended_unasked"]

_ERROR = b"E"
"""Type of an error's message. Unasked, a server sends one only before it ends the session."""


def ended_unasked(pgconn: Any) -> bool:  # noqa: ANN401 - psycopg's
    """Whether the server has ended a session that was waiting for its next statement.

    The message is left where it is, for libpq to read. Over TLS it cannot be recognised, only the
    end of the stream; then, and on platforms without ``MSG_PEEK``, the answer may be a wrong no.

    Args:
        pgconn: A ``psycopg.pq.PGconn`` that is not in the middle of anything.
    """
    if not hasattr(socket, "MSG_DONTWAIT") or pgconn.ssl_in_use:
        return False
    try:
        with socket.socket(fileno=os.dup(pgconn.socket)) as ours:
            waiting = ours.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return waiting in (b"", _ERROR)

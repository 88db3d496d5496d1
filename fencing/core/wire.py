"""What has arrived on a connection of libpq's and was not read yet."""

from __future__ import annotations

import os
import select
import socket
from typing import Any

__all__ = ["ended_unasked"]

_CAN_PEEK = hasattr(socket, "MSG_DONTWAIT") and hasattr(select, "poll")

_ERROR = b"E"
"""Type of an error's message. Unasked, a server sends one only before it ends the session."""


def ended_unasked(pgconn: Any) -> bool:  # noqa: ANN401 - psycopg's
    """Whether the server has ended a session that was waiting for its next statement.

    The message is left where it is, for libpq to read. Over TLS it cannot be recognised; then, and
    on platforms that cannot peek, the answer may be a wrong no.

    Args:
        pgconn: A ``psycopg.pq.PGconn`` that is not in the middle of anything.
    """
    if not _CAN_PEEK:
        return False
    # Once a transaction, so it should cost little: mostly there is nothing to be read at all.
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    if not poll.poll(0) or pgconn.ssl_in_use:
        return False
    try:
        with socket.socket(fileno=os.dup(pgconn.socket)) as ours:
            waiting = ours.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return waiting in (b"", _ERROR)

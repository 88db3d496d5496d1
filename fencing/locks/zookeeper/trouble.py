"""What an error of kazoo means for a lock service."""

from __future__ import annotations

from kazoo import exceptions

from fencing.locks.asking import Trouble
from fencing.locks.zookeeper.asking import Refused

__all__ = ["UNREACHABLE", "refusal_of", "silence", "trouble_of"]

UNREACHABLE = (
    "ZooKeeper cannot be reached: see that it runs and its address is right, then try again"
)
"""What it means that none of its servers lets us in."""

_WORDS: list[tuple[type[BaseException], str]] = [
    (exceptions.NoNodeError, "no node"),
    (exceptions.NodeExistsError, "exists"),
    (exceptions.BadVersionError, "version"),
    (exceptions.NotEmptyError, "not empty"),
]

# The first that fits: exception, whether to try again, what it means.
_MEANINGS: list[tuple[type[BaseException], bool, str]] = [
    (
        exceptions.NoAuthError,
        False,
        (
            "ZooKeeper does not allow it (NoAuth): give the address the user and password with "
            "which the nodes of the namespace were made, or use another namespace"
        ),
    ),
    (
        exceptions.AuthFailedError,
        False,
        "ZooKeeper does not accept the credentials (AuthFailed): check the user name and password",
    ),
    (
        exceptions.InvalidACLError,
        False,
        (
            "ZooKeeper does not accept the access list for new nodes (InvalidACL): the user has "
            "not been authenticated; check the user name and password"
        ),
    ),
    (
        exceptions.NotReadOnlyCallError,
        True,
        (
            "this ZooKeeper server has no quorum and only reads (NotReadOnly): see that most of "
            "the ensemble's servers run and reach each other"
        ),
    ),
    (
        exceptions.SessionExpiredError,  # ConnectionClosedError, too
        True,
        "the session with ZooKeeper has ended: see that its servers run; then try again",
    ),
    (
        exceptions.ConnectionLoss,
        True,
        (
            "the connection to ZooKeeper was lost: see that its servers run and have a quorum; "
            "then try again"
        ),
    ),
    (
        exceptions.OperationTimeoutError,
        True,
        "ZooKeeper did not answer in time: see if it or the network is overloaded",
    ),
    (
        OSError,
        True,
        UNREACHABLE,
    ),
]


def refusal_of(error: BaseException) -> Refused | None:
    """The answer that an error of kazoo is; ``None``: it is trouble."""
    return next((Refused(word) for kind, word in _WORDS if isinstance(error, kind)), None)


def trouble_of(error: BaseException, *, at: float) -> Trouble:
    """Say what an error means.

    Args:
        error: Of kazoo's, or of the system's when connecting.
        at: When it happened (:func:`fencing.clock.now`, seconds).
    """
    told = str(error) or type(error).__name__
    passing, meaning = next(
        ((passing, meaning) for kind, passing, meaning in _MEANINGS if isinstance(error, kind)),
        (False, "ZooKeeper refused"),
    )
    trouble = Trouble(f"{meaning} ({told})", passing=passing, at=at)
    trouble.__cause__ = error
    return trouble


def silence(seconds: float, hosts: str, *, connected: bool, at: float) -> Trouble:
    """The trouble that there was no answer within so many seconds.

    Args:
        seconds: How many.
        hosts: Of whom.
        connected: Whether there is a session.
        at: When it was given up (:func:`fencing.clock.now`, seconds).
    """
    what = (
        "see if it or the network is overloaded"
        if connected
        else "there is no session; see that its servers run, that most of them reach each other (a "
        "server without a quorum lets nobody in), and that the address is right"
    )
    message = f"ZooKeeper ({hosts}) did not answer within {seconds:.2f} s: {what}; then try again"
    trouble = Trouble(message, passing=True, at=at)
    trouble.__cause__ = TimeoutError(f"no answer within {seconds:.2f} s")
    return trouble

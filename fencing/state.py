"""What a lock service knows of a resource."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LockState"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockState:
    """The lock of one resource, at the moment it was asked for.

    It may be another's before you have read it: decide nothing by it that a lease should decide.

    Attributes:
        resource: Which resource.
        held: Whether anybody holds it.
        owner: The holder's label; empty if nobody holds it.
        token: The holder's token; ``None`` if nobody holds it, or if it is held by something that
            is no lease of ours.
        holder: The holder's nonce, to be compared with that of a lease; ``None`` like the token.
        remaining: How long it is held for, if it is not renewed, in seconds; infinity for a lock
            that never ends by itself.
        counter: The last token that was issued, 0 if none was; ``None`` if it cannot be told.
        waiters: How many wait for it, as far as the lock service knows. In Redis those of one
            process who wait without ``fair`` count as one.
    """

    resource: str
    held: bool = False
    owner: str = ""
    token: int | None = None
    holder: str | None = field(default=None, repr=False)
    remaining: float = 0.0
    counter: int | None = 0
    waiters: int = 0

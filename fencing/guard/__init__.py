"""Guards: a lock service, databases that refuse, and the leases between them.

Who has authority: the lock service decides who may try next; the database decides who may write.
The lock service may forget, repeat or reverse its tokens: then some holder waits or is refused,
and nobody overwrites anybody.
"""

from fencing.guard.shells import AsyncGuard, Guard

__all__ = ["AsyncGuard", "Guard"]

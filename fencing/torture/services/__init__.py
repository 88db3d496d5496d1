"""The servers of each lock service, and what can be done to them."""

from fencing.torture.services.base import LockServers
from fencing.torture.services.registry import SERVICES, lock_servers

__all__ = ["SERVICES", "LockServers", "lock_servers"]

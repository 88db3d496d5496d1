"""What administrators do to a database beside migrations: verify, prune, raise a fence.

Each function takes the URL of a database and connects for this call only.
"""

from fencing.administration.pruning import (
    Pruned,
    forget_leases,
    forget_receipts,
    prunable,
    prune,
)
from fencing.administration.raising import Raised, raise_fence
from fencing.administration.verifying import verify_url

__all__ = [
    "Pruned",
    "Raised",
    "forget_leases",
    "forget_receipts",
    "prunable",
    "prune",
    "raise_fence",
    "verify_url",
]

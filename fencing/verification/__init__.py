"""What a database has of fencing, held against what it should have.

Nothing here connects: :func:`verification` is a generator that yields queries and is sent their
rows, so that the command line, the guards and a bare connection perform the same one
(:func:`perform`). It reads catalogs only and needs no right beyond connecting; it trusts no
function of schema ``fencing`` that it has not compared with this package's own before.

In three steps: :mod:`~fencing.verification.facts` gathers, the checks judge,
:mod:`~fencing.verification.report` tells.
"""

from fencing.verification.declared import Declared, declared_in
from fencing.verification.findings import (
    Finding,
    ServiceVerification,
    Verification,
    VerifiedTable,
    by_gravity,
    together,
)
from fencing.verification.plan import perform, perform_async, verification

__all__ = [
    "Declared",
    "Finding",
    "ServiceVerification",
    "Verification",
    "VerifiedTable",
    "by_gravity",
    "declared_in",
    "perform",
    "perform_async",
    "together",
    "verification",
]

"""Lock services: who may try next.

One package each; what they have in common is in :mod:`~fencing.locks.base`.
"""

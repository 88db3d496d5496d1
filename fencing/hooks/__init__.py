"""The SQLAlchemy side of the guard: presents leases, and translates what the database refuses.

This package never sees a lock service: it is given leases, and it is told by the database.
"""

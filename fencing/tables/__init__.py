"""Looks at the guards of a database and changes them, over a connection of SQLAlchemy's.

Migrations do so, and ``metadata.create_all()``.
"""

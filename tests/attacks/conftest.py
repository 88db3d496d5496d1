"""Connections to an empty database with schema fencing, as in the tests of the schema."""

from tests.schema.conftest import accounts, admin, connect

__all__ = ["accounts", "admin", "connect"]

"""Settings of all tests here."""

from __future__ import annotations

from tests.support.hypothesis_profile import load_profile

load_profile()

"""Settings of all property tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

__all__ = ["load_profile"]


def load_profile() -> None:
    """Use them from now on.

    Servers and shared machines take the time they take; what failed is printed, not kept on disk.
    """
    settings.register_profile(
        "fencing",
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
    settings.load_profile("fencing")

"""A guarded bank."""

from tests.support.banking import *  # noqa: F403 - pytest collects fixtures by name

"""Every write path that is tried, in the order of docs/coverage.md."""

from __future__ import annotations

from tests.coverage.parts import PART_PATHS
from tests.coverage.plain import PLAIN
from tests.coverage.scenarios import BANK, CASCADES, INHERITANCE, RANGE
from tests.coverage.templates import TEMPLATE_PATHS

# The same statements are tried on tables of other kinds, too, if less thoroughly.
THOROUGHLY = {BANK, CASCADES, RANGE, INHERITANCE}

PATHS = [*PLAIN, *PART_PATHS, *TEMPLATE_PATHS]

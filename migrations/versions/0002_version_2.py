"""Schema ``fencing``, version 2: guards that the database renders, parts of tables, retention.

Revision ID: fencing_0002
Create Date: 2026-11-29
"""

from alembic import op

import fencing.migration  # noqa: F401 -- registers the operations

revision = "fencing_0002"
down_revision = "fencing_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.upgrade_fencing()  # finds nothing to do where this package has installed the schema


def downgrade() -> None:
    """Nothing: version 2 serves older packages too, and floors must not be forgotten."""

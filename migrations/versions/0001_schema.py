"""Schema ``fencing``.

Revision ID: fencing_0001
Create Date: 2025-11-29
"""

from alembic import op

import fencing.migration  # noqa: F401 -- registers the operations

# The prefix keeps it apart from an application's revisions when both are in one environment.
revision = "fencing_0001"
down_revision = None
branch_labels = ("fencing",)
depends_on = None


def upgrade() -> None:
    op.install_fencing()


def downgrade() -> None:
    op.uninstall_fencing()

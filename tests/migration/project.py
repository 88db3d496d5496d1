"""An application with an Alembic environment, driven by Alembic's own commands in this process."""

from __future__ import annotations

import io
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from sqlalchemy import NullPool, create_engine

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import MetaData

ENV = """
from alembic import context

connection = context.config.attributes["connection"]
if connection is None:
    context.configure(dialect_name="postgresql", literal_binds=True)
else:
    context.configure(connection=connection, **context.config.attributes["options"])
with context.begin_transaction():
    context.run_migrations()
"""

TEMPLATE = '''"""${message}"""

from alembic import op
import sqlalchemy as sa
${imports if imports else ""}

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade():
    ${upgrades if upgrades else "pass"}


def downgrade():
    ${downgrades if downgrades else "pass"}
'''


class Project:
    """Its migrations are generated from whatever metadata it is given.

    Args:
        folder: Where to put it.
        url: SQLAlchemy address of its database.
        options: What its ``env.py`` says to ``context.configure()``.
    """

    def __init__(self, folder: Path, url: str, **options: object) -> None:
        self.folder = folder
        self.url = url
        self.options = options
        (folder / "versions").mkdir(parents=True)
        (folder / "env.py").write_text(ENV)
        (folder / "script.py.mako").write_text(TEMPLATE)
        self._revision = 0

    def generate(self, metadata: MetaData) -> tuple[list[str], list[str]]:
        """``alembic revision --autogenerate``; what it says up and down, a line each operation."""
        self._revision += 1
        self._run(
            command.revision,
            metadata,
            autogenerate=True,
            rev_id=f"r{self._revision:03}",
            message="generated",
        )
        (path,) = self.folder.glob(f"versions/r{self._revision:03}_*.py")
        return _operations(path.read_text("utf-8"))

    def write(self, upgrade: str, downgrade: str = "pass") -> None:
        """A revision by hand."""
        last, self._revision = self._revision, self._revision + 1
        text = (
            "from alembic import op\nimport sqlalchemy as sa\n"
            f"revision = 'r{self._revision:03}'\n"
            f"down_revision = {f'r{last:03}' if last else None!r}\n"
            f"def upgrade():\n    {upgrade}\n\ndef downgrade():\n    {downgrade}\n"
        )
        (self.folder / "versions" / f"r{self._revision:03}_by_hand.py").write_text(text)

    def check(self, metadata: MetaData) -> None:
        """``alembic check``; raises where there is something to generate."""
        self._run(command.check, metadata)

    def upgrade(self, revision: str = "head") -> None:
        """``alembic upgrade``."""
        self._run(command.upgrade, None, revision)

    def downgrade(self, revision: str) -> None:
        """``alembic downgrade``."""
        self._run(command.downgrade, None, revision)

    def script(self, revisions: str, *, down: bool = False) -> str:
        """``alembic upgrade --sql``, or ``downgrade --sql``."""
        output = io.StringIO()
        config = self._config(output)
        config.attributes["connection"] = None
        with _quietly():
            (command.downgrade if down else command.upgrade)(config, revisions, sql=True)
        return output.getvalue()

    def _run(
        self, call: object, metadata: MetaData | None, *arguments: str, **more: object
    ) -> None:
        engine = create_engine(self.url, poolclass=NullPool)
        with engine.connect() as connection, _quietly():
            config = self._config()
            config.attributes["connection"] = connection
            config.attributes["options"] = {"target_metadata": metadata, **self.options}
            call(config, *arguments, **more)
        engine.dispose()

    def _config(self, output: io.StringIO | None = None) -> Config:
        config = Config(output_buffer=output, stdout=io.StringIO())
        config.set_main_option("script_location", str(self.folder).replace("%", "%%"))
        return config


@contextmanager
def _quietly() -> Iterator[None]:
    with warnings.catch_warnings():
        # Of Alembic's own alter_column, when the type of a primary key changes.
        warnings.filterwarnings("ignore", message="autoincrement and existing_autoincrement")
        yield


def _operations(script: str) -> tuple[list[str], list[str]]:
    before, _, downgrade = script.partition("def downgrade():")
    return list(_lines(before.partition("def upgrade():")[2])), list(_lines(downgrade))


def _lines(body: str) -> Iterator[str]:
    """Statements, without comments; one that goes on is cut off at its first line."""
    for line in body.splitlines():
        if line.startswith("    op."):
            yield line.strip()

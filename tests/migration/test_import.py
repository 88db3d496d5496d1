"""Importing fencing.migration: cheap, and possible while Alembic itself is being imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import alembic
import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def python(code: str, *, path: tuple[Path, ...] = ()) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *path)))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# The package without what its __init__ imports, which is not this module's to answer for.
BARE_PACKAGE = f"""
import sys, types
package = types.ModuleType("fencing")
package.__path__ = [{str(ROOT / "fencing")!r}]
sys.modules["fencing"] = package
"""


def test_it_imports_no_more_than_alembic_itself_does():
    listing = "; import sys; print(*sys.modules)"
    bare = set(python(f"import alembic.operations{listing}").split())
    ours = set(python(f"{BARE_PACKAGE}import fencing.migration{listing}").split())
    heavy = {
        module
        for module in ours - bare
        if not module.startswith("fencing") and module.split(".")[0] not in sys.stdlib_module_names
    }
    assert heavy == set()
    assert "alembic.command" not in ours


def as_installed(folder: Path) -> Path:
    """A folder for sys.path that makes this checkout look like the installed package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    info = folder / f"fencing-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: fencing\nVersion: {project['version']}\n"
    )
    points = project["entry-points"]["alembic.plugins"]
    (info / "entry_points.txt").write_text(
        "[alembic.plugins]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
    )
    return folder


def without_plugins(folder: Path) -> Path:
    """A folder for sys.path that hides the entry points of an installed package."""
    info = folder / "fencing-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fencing\nVersion: 0\n")
    return folder


has_plugins = pytest.mark.skipif(
    Version(alembic.__version__) < Version("1.18"), reason="this version of Alembic has no plugins"
)

# What somebody may import first: each meets Alembic in another state.
FIRST = [
    "import alembic",
    "import alembic.command",
    "import alembic.operations.ops",
    "import fencing.migration",
    "import fencing.migration.plugin",
]


@has_plugins
@pytest.mark.parametrize("first", FIRST)
def test_as_a_plugin_it_brings_the_operations_whatever_is_imported_first(first, tmp_path):
    code = f"{first}; from alembic import op; print(op.fence_table.__name__)"
    assert python(code, path=(as_installed(tmp_path),)) == "fence_table\n"


@pytest.mark.parametrize("first", FIRST[:3])
def test_an_import_brings_the_operations_where_there_are_no_plugins(first, tmp_path):
    code = (
        f"{first}; import fencing.migration; from alembic import op; print(op.fence_table.__name__)"
    )
    assert python(code, path=(without_plugins(tmp_path),)) == "fence_table\n"


COMPARE = """
import sqlalchemy as sa
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from fencing import fenced_by

metadata = sa.MetaData()
fenced_by("account:{id}")(sa.Table("accounts", metadata, sa.Column("id", sa.Integer)))
engine = sa.create_engine(URL, poolclass=sa.NullPool)
with engine.connect() as connection:
    script = produce_migrations(MigrationContext.configure(connection), metadata)
print(render_python_code(script.upgrade_ops))
"""


@has_plugins
def test_as_a_plugin_it_is_compared_and_rendered_without_an_import(tmp_path, database):
    code = COMPARE.replace("URL", repr(database))
    assert "op.fence_table('accounts', resource=" in python(code, path=(as_installed(tmp_path),))


def test_after_an_import_it_is_compared_and_rendered_where_there_are_no_plugins(tmp_path, database):
    code = "import fencing.migration\n" + COMPARE.replace("URL", repr(database))
    assert "op.fence_table('accounts', resource=" in python(code, path=(without_plugins(tmp_path),))


@has_plugins
def test_a_plugin_of_somebody_elses_may_import_it(tmp_path):
    """In that moment, importing Alembic's renderers breaks every import of Alembic."""
    info = without_plugins(tmp_path) / "aplugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aplugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[alembic.plugins]\naplugin = aplugin:modules\n")
    (tmp_path / "aplugin.py").write_text(
        "import types, fencing.migration\n"
        "class Module(types.ModuleType):\n"
        "    def __iter__(self): yield self\n"
        "    def setup(self, plugin): pass\n"
        "modules = Module('aplugin')\n"
    )
    code = "import alembic; from alembic import op; print(op.fence_table.__name__)"
    assert python(code, path=(tmp_path,)) == "fence_table\n"


def test_the_migrations_module_can_be_imported_without_a_driver_or_redis():
    code = "import sys, fencing.migration; print({'redis', 'psycopg'} & set(sys.modules))"
    assert python(code) == "set()\n"

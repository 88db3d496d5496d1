"""Importing fencing.migration: cheap, and possible while Alembic itself is being imported."""

from __future__ import annotations

import os
import subprocess
import sys
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


@pytest.mark.skipif(
    Version(alembic.__version__) < Version("1.20.1"),
    reason="older ones take no module for a plugin",
)
def test_it_can_be_a_plugin_that_alembic_loads_during_its_own_import(tmp_path):
    """In that moment, importing Alembic's renderers breaks every import of Alembic."""
    info = tmp_path / "aplugin-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aplugin\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[alembic.plugins]\nfencing = aplugin\n")
    (tmp_path / "aplugin.py").write_text("import fencing.migration\ndef setup(plugin): pass\n")
    code = (
        "import sys; import alembic; from alembic import op; "
        "assert 'fencing.migration' in sys.modules; print(op.fence_table.__name__)"
    )
    assert python(code, path=(tmp_path,)) == "fence_table\n"

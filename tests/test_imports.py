"""What importing the package does: it stays light, and its front page has one list of names.

Rules of the source are checked by ``make lint`` (``tests/lint/check_source.py`` and import-linter).
"""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dpscp


def is_for_types_only(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def test_help_waits_for_no_numerical_library_and_the_package_for_no_optional_one():
    """And the names of the package are there when they are asked for, in whatever order its packages are imported."""
    code = (
        "import sys, dpscp\n"
        "from dpscp.cli import main\n"
        "from dpscp.cli.main import build_parser\n"
        "build_parser().format_help()\n"
        "heavy = {'numpy', 'scipy', 'sklearn', 'pandas', 'dp_accounting'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from dpscp.audit import Audit\n"
        "import sklearn.utils\n"
        "before = set(sys.modules)\n"  # scikit-learn itself imports pandas where it is installed
        "assert callable(dpscp.audit) and callable(main) and dpscp.plan.__module__ == 'dpscp.report.planning'\n"
        "everything = [getattr(dpscp, name) for name in dpscp.__all__]\n"
        "heavy = {'torch', 'opacus', 'dask', 'matplotlib', 'pandas', 'jinja2', 'rich'} & (set(sys.modules) - before)\n"
        "assert not heavy, heavy\n"
        "assert set(dpscp.__all__) <= set(dir(dpscp))\n"
        "from dpscp import *\n"
        "assert dpscp.audit is audit and privacy is sys.modules['dpscp.privacy']\n"
        "import dpscp.cli.commands"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_the_front_page_has_one_list_of_names():
    """What the type checker sees, what is imported on first use and what is public are the same names."""
    tree = ast.parse(Path(dpscp.__file__).read_text())
    typed = {
        (alias.asname, f"dpscp.{alias.name}" if node.module == "dpscp" else node.module)
        for block in tree.body
        if is_for_types_only(block)
        for node in block.body
        for alias in node.names
    }
    packages = {(name, holder) for name, holder in typed if holder == f"dpscp.{name}"}
    assert set(dpscp._MODULES.items()) == typed - packages
    assert {name for name, _ in typed} | {"audit", "__version__"} == set(dpscp.__all__)
    assert all(isinstance(getattr(dpscp, name), ModuleType) for name, _ in packages)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dpscp.nothing
    assert not hasattr(dpscp, "nothing.at_all")

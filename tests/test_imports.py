"""What importing the package does: it stays light, old paths work, and its front page has one list of names.

Rules of the source are checked by ``make lint`` (``tests/lint/check_source.py`` and import-linter).
"""

import ast
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dpscp
from dpscp import paper
from dpscp._base.old_paths import _MOVED


def is_for_types_only(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@pytest.mark.parametrize(("old", "new"), _MOVED.items())
def test_old_paths_name_the_same_module(old, new):
    assert importlib.import_module(f"dpscp.{old}") is importlib.import_module(f"dpscp.{new}")
    assert importlib.import_module(f"dpscp.{new}").__spec__.name == f"dpscp.{new}"


def test_modules_of_a_moved_package_are_found_too():
    from dpscp.conformal.classifier import PrivateConformalClassifier
    from dpscp.sources.base import Block

    assert PrivateConformalClassifier is dpscp.PrivateConformalClassifier
    assert Block is importlib.import_module("dpscp.data.sources.base").Block


def test_the_papers_names_are_those_of_their_subjects():
    for name in paper.__all__:
        holders = [module for module in (dpscp.privacy, dpscp.guarantees, dpscp.training) if name in module.__all__]
        assert [getattr(module, name) for module in holders] == [getattr(paper, name)]


def test_importing_the_package_stays_light_and_asks_for_nothing_of_the_paper():
    code = (
        "import sys, sklearn.utils\n"
        "before = set(sys.modules)\n"  # scikit-learn itself imports pandas where it is installed
        "import dpscp\n"
        "everything = [getattr(dpscp, name) for name in dpscp.__all__]\n"
        "heavy = {'torch', 'opacus', 'dask', 'matplotlib', 'pandas', 'jinja2', 'rich'} & (set(sys.modules) - before)\n"
        "assert not heavy, heavy\n"
        "import dpscp.cli.commands\n"
        "assert 'dpscp.paper' not in sys.modules"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


def test_help_waits_for_no_numerical_library():
    """And the names of the package are there when they are asked for, in whatever order its rooms are imported."""
    code = (
        "import sys, dpscp\n"
        "from dpscp.cli import main\n"
        "from dpscp.cli.main import build_parser\n"
        "build_parser().format_help()\n"
        "heavy = {'numpy', 'scipy', 'sklearn', 'pandas', 'dp_accounting'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "from dpscp.audit import Audit\n"
        "assert callable(dpscp.audit) and callable(main) and dpscp.plan.__module__ == 'dpscp.core.planning'\n"
        "assert set(dpscp.__all__) <= set(dir(dpscp))\n"
        "from dpscp import *\n"
        "assert dpscp.audit is audit and privacy is sys.modules['dpscp.privacy']\n"
        "for name in (*dpscp._MODULES, 'persons', 'release', 'strategy'): getattr(dpscp, name)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def run_alone(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_estimator_imports_neither_signal_processing_nor_the_trainer_of_torch():
    """And computations of dp-accounting import what they need, here in several threads at once.

    An import inside replaces the deferred module.
    """
    run_alone(
        "import sys\n"
        "import dpscp.privacy\n"
        "from dpscp._base.accounting_import import defer_import\n"
        "with defer_import('xml', 'sax'):\n"
        "    from xml import sax as deferred\n"
        "    assert 'xml.sax' not in sys.modules\n"
        "    import xml.sax\n"
        "import xml\n"
        "assert xml.sax is sys.modules['xml.sax'] is not deferred and deferred.parse is xml.sax.parse\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from dpscp import PrivateConformalClassifier, privacy, training\n"
        "heavy = {'scipy.signal', 'absl.logging', 'absl.flags', 'dpscp.training.torch.trainer'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "import absl, scipy\n"
        "assert 'signal' not in vars(scipy) and 'logging' not in vars(absl)\n"
        "from dp_accounting.pld import privacy_loss_distribution as pld\n"
        "loss = lambda: pld.from_laplace_mechanism(1.0)\n"
        "with ThreadPoolExecutor(4) as pool:\n"
        "    runs = [pool.submit(lambda: loss().compose(loss()).get_epsilon_for_delta(1e-6)) for _ in range(4)]\n"
        "    assert {round(run.result(), 3) for run in runs} == {2.0}\n"
        "import scipy.signal\n"
        "from dp_accounting.pld import common\n"
        "assert common.signal.fftconvolve is scipy.signal.fftconvolve\n"
        "event = privacy.dpsgd_event(1.0, 0.01, 10)\n"
        "assert 0 < privacy.epsilon_of(event, 1e-6, accountant='rdp') < 10\n"
        "import logging\n"
        "from absl.logging import ABSLLogger\n"
        "assert isinstance(logging.getLogger('absl'), ABSLLogger)\n"
        "assert training.OpacusTraining.__module__ == 'dpscp.training.torch.trainer'"
    )


@pytest.mark.parametrize("first", ["scipy.signal", pytest.param("dp_accounting", marks=pytest.mark.slow)])
def test_what_was_imported_before_is_left_as_it_is(first):
    run_alone(
        f"import scipy, {first}\n"
        "before = scipy.signal\n"
        "import dpscp.privacy\n"
        "from dp_accounting.pld import common\n"
        "assert scipy.signal is before is common.signal and type(before).__name__ == 'module'"
    )


def test_the_front_page_has_one_list_of_names():
    """What the type checker sees, what is answered for and what is promised are the same names."""
    for module in (dpscp, sys.modules["dpscp.audit"]):
        tree = ast.parse(Path(module.__file__).read_text())
        typed = {
            (alias.name, f"{node.module}.{alias.name}" if node.module == "dpscp" else node.module)
            for block in tree.body
            if is_for_types_only(block)
            for node in block.body
            for alias in node.names
        }
        rooms = {(name, holder) for name, holder in typed if holder == f"{module.__name__}.{name}"}
        assert set(module._MODULES.items()) == typed - rooms
        assert all(isinstance(getattr(module, name), ModuleType) for name, _ in rooms)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dpscp.nothing
    assert not hasattr(dpscp, "nothing.at_all")

"""House rules that can be read from the source: who imports whom, where torch lives, where randomness comes from."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import dpscp
from dpscp import paper

ROOT = Path(dpscp.__file__).parent

# A room may import rooms of an earlier row only. Put a new room in its row.
LAYERS = [
    {"_checks", "_elsewhere", "_object_state", "_person_ids", "_printed", "_sklearn", "_trust", "exceptions"},
    {"privacy"},
    {"frames", "persons"},
    {"quantile", "sets", "metrics", "records", "persistence", "budget", "schema"},
    {"scores", "guarantees", "sources"},
    {"training"},
    {"searches"},
    {"calibration", "tasks", "paper"},
    {"scoring", "strategy"},
    {"release"},
    {"conformal", "baselines"},
    {"planning", "audit"},
    {"report"},
    {"cli"},
]
# A picture of a plan and the page of an estimator come from the report room, imported only when asked for.
WHEN_ASKED = {("planning", "report"), ("conformal", "report")}
LAYER_OF = {room: number for number, row in enumerate(LAYERS) for room in row}

FILES = sorted(ROOT.rglob("*.py"))


def room_of(file):
    """The room of a source file: the first name below the package, '' for the package's own front page."""
    return file.relative_to(ROOT).parts[0].removesuffix(".py").replace("__init__", "").replace("__main__", "cli")


def is_for_types_only(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imported_modules(tree, *, inside_functions=True):
    """Absolute names of everything that is imported when the code runs."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "write imports in full: they are easier to check"
            yield node.module
            if node.module in ("dpscp", "numpy"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif is_for_types_only(node) or (isinstance(node, ast.FunctionDef) and not inside_functions):
            continue
        else:
            yield from imported_modules(node, inside_functions=inside_functions)


def inner_rooms(file, **kwargs):
    names = imported_modules(ast.parse(file.read_text()), **kwargs)
    return {name.split(".")[1] for name in names if name.startswith("dpscp.")}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_import_direction(file):
    room = room_of(file)
    if room == "":
        return
    assert room in LAYER_OF, f"{room} has no row in LAYERS"
    always = inner_rooms(file, inside_functions=False) - {room}
    when_asked = {other for other in inner_rooms(file) - {room} - always if (room, other) not in WHEN_ASKED}
    for other in always | when_asked:
        assert LAYER_OF.get(other, len(LAYERS)) < LAYER_OF[room], f"{room} may not import {other}"


ANSWER_FOR_THE_PAPER = ("privacy/__init__.py", "guarantees/__init__.py", "training/__init__.py")


def test_nothing_runs_through_the_papers_room():
    """Its names are answered for by the rooms of their subject, and no product code asks."""
    named = {
        str(file.relative_to(ROOT))
        for file in FILES
        if room_of(file) != "paper"
        and "dpscp.paper" in file.read_text().replace("from dpscp import paper", "dpscp.paper")
    }
    assert named == set(ANSWER_FOR_THE_PAPER)
    held = set(dpscp.privacy.__all__ + dpscp.guarantees.__all__ + dpscp.training.__all__) & set(paper.__all__)
    assert held == set(paper.__all__)
    assert dpscp.guarantees.coverage_lower_bound is paper.coverage_lower_bound
    with pytest.raises(AttributeError, match=r"dpscp\.training.*no attribute"):
        _ = dpscp.training.coupled_rum


def test_the_map_of_contributing_is_this_one():
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text().split("## Layout")[1].split("## ")[0]
    rows = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    assert rows == [", ".join(sorted(row)) for row in LAYERS]


def test_every_room_of_the_map_exists():
    assert set(LAYER_OF) == {room_of(file) for file in FILES} - {""}


def test_the_check_sees_imports_inside_functions():
    tree = ast.parse("def f():\n    from dpscp.conformal import x\n    import dpscp.cli\n    from dpscp import audit")
    assert {"dpscp.conformal", "dpscp.cli", "dpscp.audit"} <= set(imported_modules(tree))
    assert not set(imported_modules(tree, inside_functions=False))
    nested = ast.parse("try:\n    import dpscp.cli\nexcept ImportError:\n    pass\nif TYPE_CHECKING:\n    import torch")
    assert set(imported_modules(nested)) == {"dpscp.cli"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_only_one_file_imports_torch(file):
    heavy = {name.split(".")[0] for name in imported_modules(ast.parse(file.read_text()))} & {"torch", "opacus"}
    if file == ROOT / "sources" / "distributed.py":  # no module and no tensor: torch's processes alone
        return
    assert not heavy or file == ROOT / "training" / "torch_modules.py"


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
        "assert callable(dpscp.audit) and callable(main) and dpscp.plan.__module__ == 'dpscp.planning'\n"
        "assert set(dpscp.__all__) <= set(dir(dpscp))\n"
        "from dpscp import *\n"
        "assert dpscp.audit is audit and privacy is sys.modules['dpscp.privacy']\n"
        "for name in (*dpscp._HOLDERS, 'persons', 'release', 'strategy'): getattr(dpscp, name)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


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
        assert set(module._HOLDERS.items()) == typed - rooms
        assert all(isinstance(getattr(module, name), ModuleType) for name, _ in rooms)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dpscp.nothing
    assert not hasattr(dpscp, "nothing.at_all")


def dotted(node):
    """'np.random.normal' for such an attribute, '' for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        left = dotted(node.value)
        return f"{left}.{node.attr}" if left else ""
    return ""


RANDOM_FILES = {
    "privacy/seeds.py": {"np.random.default_rng", "np.random.PCG64", "randomgen"},
    "training/networks.py": {"np.random.PCG64"},  # the starting point, a function of a public seed
    "cli/demo.py": {"np.random.default_rng"},  # made-up records
}
# Types and seed arithmetic carry no randomness of their own.
HARMLESS = {"Generator", "SeedSequence", "BitGenerator"}


def random_sources(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = dotted(node)
            for prefix in ("np.random.", "numpy.random."):
                if name.startswith(prefix) and name.removeprefix(prefix).split(".")[0] not in HARMLESS:
                    yield name
        elif isinstance(node, ast.Name) and node.id in ("default_rng", "RandomState"):
            yield node.id
    for name in imported_modules(tree):
        if name.split(".")[0] in ("random", "secrets", "randomgen") or name.startswith("numpy.random"):
            yield name


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_randomness_comes_from_one_file(file):
    found = set(random_sources(ast.parse(file.read_text())))
    assert found <= RANDOM_FILES.get(str(file.relative_to(ROOT)), set())


def test_the_check_sees_random_sources():
    for code in (
        "np.random.seed(0)",
        "np.random.default_rng(0)",
        "numpy.random.rand()",
        "import random",
        "from random import gauss",
        "from numpy.random import default_rng",
        "from numpy import random",
    ):
        assert list(random_sources(ast.parse(code)))


LONGEST = 60
LONG = {("cli/main.py", "build_parser")}  # one statement an option


def functions(file):
    """Name and number of lines, without the docstring, of every function of a file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef):
            told = node.body[0].end_lineno - node.body[0].lineno + 1 if ast.get_docstring(node) else 0
            yield node.name, node.end_lineno - node.lineno + 1 - told


def test_functions_fit_on_a_screen():
    long = {(str(f.relative_to(ROOT)), name) for f in FILES for name, lines in functions(f) if lines > LONGEST}
    assert long == LONG


def patched_names(tree):
    """What code sets on objects, classes and modules that it did not make; frozen values set their own fields."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in ("setattr", "delattr", "builtins.setattr"):
            yield ast.unparse(node)


# A second fit drops what the first one left.
OWN_ATTRIBUTES = {"conformal/base.py": {"delattr(self, name)"}}


@pytest.mark.parametrize("file", FILES, ids=lambda f: str(f.relative_to(ROOT)))
def test_product_code_patches_nothing(file):
    found = set(patched_names(ast.parse(file.read_text())))
    assert found <= OWN_ATTRIBUTES.get(str(file.relative_to(ROOT)), set())


def test_the_check_sees_patches():
    assert list(patched_names(ast.parse("def f(owner, name, value):\n    setattr(owner, name, value)")))
    assert not list(patched_names(ast.parse("object.__setattr__(self, 'steps', 3)")))


def test_an_observer_is_out_of_reach_of_users_of_the_command_line_and_the_estimators():
    """What an observer hears is not private: it is for tests and audits of the parts."""
    for file in FILES:
        if room_of(file) in ("cli", "conformal", "baselines", "report", "planning"):
            assert "observer" not in file.read_text(), file


def test_every_module_says_what_it_is_for():
    for file in FILES:
        assert ast.get_docstring(ast.parse(file.read_text())), f"{file.name} has no docstring"
